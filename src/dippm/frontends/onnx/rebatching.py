"""How a shape that the file fixes for its own batch grows to another batch.

A model exported at batch 1 carries targets such as ``[1, 197, 12, 64]``. Read row by row, the batch of the input sits
at a known stride; the target's dimension at that stride is the one that grows. Where a target can be read in more than
one way, the likeliest is tried first and the others are kept for a later attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from dippm.frontends.onnx.program import Array
from dippm.graph.dim import changed_axis

__all__ = ["Choices", "Rebatching", "Signature"]

Sizes = tuple[int, ...]
Signature = tuple[Sizes, int, Sizes]
"""Shape of a reshape's input in the file, the batch's axis in it, and shape of the output in the file."""

Choices = dict[Signature, int]


class Rebatching:
    """Choices of one attempt.

    Args:
        native: The batch that the file fixes.
        batch: The batch asked for.
        choices: For each reshape met so far which of its readings to take; new ones are added.
        alternatives: For each reshape met so far how many readings it has; new ones are added.
        held: The dimension in which the batch is written into a value, by the value's number.
    """

    def __init__(
        self,
        native: int,
        batch: int,
        choices: Choices | None = None,
        alternatives: dict[Signature, int] | None = None,
        held: Mapping[int, int] | None = None,
    ) -> None:
        self._native = native
        self._batch = batch
        self.choices = {} if choices is None else choices
        self.alternatives = {} if alternatives is None else alternatives
        self.held = {} if held is None else held

    def reshape(self, native: Sizes, current: Sizes, target: Sizes) -> Sizes | None:
        """The target of a reshape at the batch asked for.

        Args:
            native: Shape of the input at the file's batch.
            current: Its shape at the batch asked for.
            target: The output's shape at the file's batch.

        Returns:
            The grown target, or None where the input does not carry the batch in exactly one dimension.
        """
        axis = self._batch_axis(native, current)
        if axis is None:
            return None
        readings = self._readings(native, axis, target)
        if not readings:
            return None
        signature = (native, axis, target)
        self.alternatives[signature] = len(readings)
        chosen = readings[min(self.choices.setdefault(signature, 0), len(readings) - 1)]
        return self._grow(target, chosen)

    def scale_like(self, native: Sizes, current: Sizes, target: Sizes) -> Sizes:
        """The target of an expansion: where the input grew, so does the target."""
        offset = len(target) - len(native)
        grown = list(target)
        for axis, (old, new) in enumerate(zip(native, current, strict=False)):
            if old != new and offset + axis >= 0 and target[offset + axis] == old:
                grown[offset + axis] = new
        return tuple(grown)

    def held_shape(self, number: int, shape: Sizes) -> Sizes | None:
        """The shape of a value that the batch is written into at the batch asked for, None where it is not.

        Args:
            number: The value's number.
            shape: Its shape at the file's batch.
        """
        axis = self.held.get(number)
        return None if axis is None else self._grow(shape, axis)

    def held_data(self, number: int, data: Array) -> Array | None:
        """The numbers of such a value, None where its samples differ and so tell nothing of others."""
        axis = self.held[number]
        sample = data.take([0], axis)
        return np.repeat(sample, self._batch, axis) if (data == sample).all() else None

    def _batch_axis(self, native: Sizes, current: Sizes) -> int | None:
        axis = changed_axis(native, current)
        if axis is None or native[axis] * self._batch != current[axis] * self._native:
            return None
        return axis

    def _grow(self, target: Sizes, axis: int) -> Sizes:
        return (*target[:axis], target[axis] * self._batch // self._native, *target[axis + 1 :])

    def _readings(self, native: Sizes, axis: int, target: Sizes) -> list[int]:
        """Dimensions of the target that may carry the batch, the likeliest first."""
        inner = prod(native[axis + 1 :])
        end = inner * native[axis]  # the batch is the outermost part of its dimension unless it was merged into one
        exact, outer, rest = [], [], []
        for candidate in self._growable(target):
            stride = prod(target[candidate + 1 :])
            if stride * target[candidate] == end and target[candidate] == self._native:
                exact.append(candidate)
            elif stride * target[candidate] == end:
                outer.append(candidate)
            else:
                rest.append(candidate)
        return exact + outer + rest

    def _growable(self, target: Sequence[int]) -> list[int]:
        return [axis for axis, size in enumerate(target) if size and size % self._native == 0]
