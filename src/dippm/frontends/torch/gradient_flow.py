"""Where a training step lets no gradient through: behind ``torch.no_grad`` and ``detach``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

__all__ = ["GradientFlow"]


class GradientFlow:
    """Which tensors of a recording depend on a trained weight, and from which of them a gradient goes back to it.

    A recording runs in inference mode, where tensors have no history of their own; whether gradients are wanted is
    still switched on and off there, as ``torch.no_grad`` does.
    """

    def __init__(self) -> None:
        self._dependent: set[int] = set()
        self._cut: set[int] = set()
        self._is_on_outside: bool | None = None

    @property
    def is_on(self) -> bool:
        """Whether what runs now is differentiated."""
        # PyTorch switches gradients off inside a function that has a backward pass of its own.
        return torch.is_grad_enabled() if self._is_on_outside is None else self._is_on_outside

    @contextmanager
    def inside_function(self, *, is_on: bool) -> Iterator[None]:
        """While an ``autograd.Function`` runs, which is differentiated as a whole where it is called.

        Args:
            is_on: Whether what runs where it is called is differentiated.
        """
        before, self._is_on_outside = self._is_on_outside, is_on
        try:
            yield
        finally:
            self._is_on_outside = before

    def note_function(self, inputs: Iterable[int], outputs: Iterable[int]) -> None:
        """Take note of a function that has a gradient of its own, whatever it runs.

        Args:
            inputs: What it reads.
            outputs: What it makes that could have a gradient.
        """
        if any(self.depends(index) and not self.is_cut(index) for index in inputs):
            for index in outputs:
                self._dependent.add(index)
                self._cut.discard(index)

    @property
    def is_inside_function(self) -> bool:
        """Whether an ``autograd.Function`` runs."""
        return self._is_on_outside is not None

    def add_weight(self, index: int) -> None:
        """Let a tensor be a trained weight."""
        self._dependent.add(index)

    def depends(self, index: int) -> bool:
        """Whether the nodes recorded so far lead from a trained weight to a tensor."""
        return index in self._dependent

    def is_cut(self, index: int) -> bool:
        """Whether a tensor depends on a trained weight and no gradient goes back from it."""
        return index in self._cut

    def note(self, inputs: Iterable[int], outputs: Sequence[tuple[int, int | None]]) -> None:
        """Take note of an operator.

        Args:
            inputs: What it reads.
            outputs: What it makes that could have a gradient: each with what it overwrites, or None.
        """
        if self._dependent.isdisjoint(inputs):
            return
        for index, overwritten in outputs:
            self._dependent.add(index)
            # What overwrites a tensor without a gradient leaves it the one that it has.
            if overwritten is not None and overwritten in self._dependent:
                has_gradient = overwritten not in self._cut or self.is_on
            else:
                has_gradient = self.is_on
            if not has_gradient:
                self._cut.add(index)
