"""Which dimensions of a tensor stand where once it has been transposed and reshaped."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import Dim, Shape
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["Arrangement"]

_PROBE_BATCHES = (2, 3)
Sizes = tuple[int, ...]


class Arrangement:
    """A tensor's dimensions, by their number, as views move, join and part them.

    Dimensions of size 1 are left out: wherever they stand, no element moves.

    Args:
        shape: The tensor's shape.
    """

    def __init__(self, shape: Shape) -> None:
        self._sizes = tuple(_sizes(dim) for dim in shape)
        self._groups: list[Sizes] = [self._kept((axis,)) for axis in range(len(shape))]

    def is_order(self, wanted: Sequence[Sequence[int]]) -> bool:
        """Whether each dimension now joins these dimensions of the tensor, in that order."""
        return self._groups == [self._kept(group) for group in wanted]

    def follow(self, view: Node, shape: Shape) -> bool:
        """Go through one view to a tensor of that shape.

        Returns:
            False where the view is no transposition or reshape, or parts a dimension.
        """
        if view.kind is not OpKind.VIEW:
            return False
        function, perm = view.attributes.get("function"), view.attributes.get("perm")
        if function == "reshape":
            return self._reshape(shape)
        if function != "transpose" or not isinstance(perm, tuple) or sorted(perm) != list(range(len(self._groups))):
            return False
        self._groups = [self._groups[int(axis)] for axis in perm]
        return True

    def _reshape(self, shape: Shape) -> bool:
        pending = [axis for group in self._groups for axis in group]
        groups: list[Sizes] = []
        for dim in shape:
            wanted, filled, group = _sizes(dim), (1,) * len(_PROBE_BATCHES), []
            while filled != wanted and pending and all(a <= b for a, b in zip(filled, wanted, strict=True)):
                group.append(pending.pop(0))
                filled = tuple(a * b for a, b in zip(filled, self._sizes[group[-1]], strict=True))
            if filled != wanted:
                return False
            groups.append(tuple(group))
        self._groups = groups
        return not pending

    def _kept(self, axes: Sequence[int]) -> Sizes:
        return tuple(axis for axis in axes if any(size != 1 for size in self._sizes[axis]))


def _sizes(dim: Dim) -> Sizes:
    return tuple(dim.at(batch) for batch in _PROBE_BATCHES)
