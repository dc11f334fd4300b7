"""Sizes as several steps: what lets a small network answer to a size abruptly.

A library takes another kernel from some size on, and a network of few layers that sees a size as one number smooths
such a step away. So it also sees each size as ramps that follow each other: the first rises from 0 to 1 over the
smallest sizes and stays there, the next over those after them, and so on (piecewise linear encoding; Gorishniy et al.,
"On Embeddings for Numerical Features in Tabular Deep Learning", 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical.columns import AT, SIZES

__all__ = ["RAMPED", "Ramps"]

Float32Array = npt.NDArray[np.float32]

RAMPED = (
    *("kernel_ms", "compute_use", "memory_use", "balance", "over_cache", "waves", *SIZES),
    *("in_channels", "out_channels", "group_inputs", "group_outputs", "in_height", "out_height", "width"),
)
"""Columns that are sizes, or follow from several."""

_COLUMN, _START, _LENGTH = "ramp.column", "ramp.start", "ramp.length"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ramps:
    """Ramps of scaled features.

    Args:
        column: Column of the features that each reads.
        start: Where it begins to rise.
        length: How far it rises.

    Shapes:
        column, start, length: [R].
    """

    column: IndexArray
    start: Float32Array
    length: Float32Array

    def __len__(self) -> int:
        return len(self.column)

    @classmethod
    def none(cls) -> Ramps:
        """No ramps."""
        empty = np.zeros(0, dtype=np.float32)
        return cls(column=np.zeros(0, dtype=np.int64), start=empty, length=empty)

    @classmethod
    def fit(cls, features: Float32Array, scaled: Float32Array, *, steps: int) -> Ramps:
        """Ramps that end at quantiles of what operators have.

        Those that have 0, which are those without a size and those of size one, do not count: the former are many.

        Args:
            features: Node features of the training, in the order of ``COLUMNS``.
            scaled: The same, scaled.
            steps: Ramps of each of ``RAMPED``, where its quantiles differ.

        Shapes:
            features, scaled: [N, F].
        """
        column: list[int] = []
        knots = []
        for name in RAMPED if steps else ():
            known = scaled[features[:, AT[name]] != 0.0, AT[name]]
            if not len(known):
                continue
            ends = np.unique(np.quantile(known, np.linspace(0.0, 1.0, steps + 1)).astype(np.float32))
            knots.append(np.stack([ends[:-1], np.diff(ends)]))
            column += [AT[name]] * (len(ends) - 1)
        if not column:
            return cls.none()
        start, length = np.concatenate(knots, axis=1)
        return cls(column=np.array(column, dtype=np.int64), start=start, length=length)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Float32Array]) -> Ramps:
        """What :meth:`tensors` holds; none where it holds none.

        Raises:
            ValueError: They are no ramps.
        """
        held = [tensors[name] for name in (_COLUMN, _START, _LENGTH) if name in tensors]
        if not held:
            return cls.none()
        if len(held) < 3 or len({values.shape for values in held}) > 1 or held[0].ndim != 1:
            raise ValueError("ramps are not whole")
        column, start, length = held
        if not (np.all(column >= 0.0) and np.all(np.isfinite(start)) and np.all(length > 0.0)):
            raise ValueError("ramps have no place or do not rise")
        return cls(column=column.astype(np.int64), start=start, length=length)

    def tensors(self) -> dict[str, Float32Array]:
        """Arrays by the names of an artefact; nothing where there are no ramps."""
        if not len(self):
            return {}
        return {_COLUMN: self.column.astype(np.float32), _START: self.start, _LENGTH: self.length}

    def of(self, scaled: Float32Array) -> Float32Array:
        """Values of the ramps, 0 to 1.

        Shapes:
            scaled: [..., F]; result: [..., R].
        """
        result: Float32Array = scaled.take(self.column, axis=-1)
        result -= self.start
        result /= self.length
        return np.clip(result, 0.0, 1.0, out=result)
