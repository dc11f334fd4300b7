"""Finds where a graph with its batch left open keeps the batch that its file was exported for.

A batch that is written into the code of a model, as in ``positions.repeat(batch, 1, 1)``, leaves a number in the file
that nothing tells from any other. What is made of it has that many samples at every batch, and where no operator
brings it together with what grows, nothing fails either.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dippm.graph.graph import Graph, Node
from dippm.graph.op_kind import CONTRACTION_KINDS, RECURRENT_KINDS, OpKind

__all__ = ["HeldBatch", "find_held_batch"]

_WORKING = CONTRACTION_KINDS | RECURRENT_KINDS
_OPERANDS = {OpKind.MATMUL: 2, OpKind.ATTENTION: 3}
_PLANE_RANK = 2
_MAKING = frozenset({OpKind.FILL, OpKind.RANDOM})
_REPEATING = frozenset({"repeat", "tile", "expand"})
# Their results have the number of samples that indices, offsets, bounds or the code ask for, whatever they read.
_CHOOSING = frozenset({OpKind.GATHER, OpKind.EMBEDDING, OpKind.VIEW, OpKind.CONCAT, OpKind.UNKNOWN})
_GATHERS = frozenset({"aten.gather", "GatherElements"})


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBatch:
    """A place that keeps the batch of the file.

    Args:
        origin: The tensor in which the batch stands as a number.
        axis: The dimension of it.
        is_written: Whether the code or the file makes that tensor of nothing that grows, else an operator has lost the
            batch of what it reads.
        reason: What is wrong where, a whole sentence.
    """

    origin: int
    axis: int
    is_written: bool
    reason: str


def find_held_batch(graph: Graph, batch: int, *, made_up: Collection[int] = ()) -> HeldBatch | None:
    """The first operator with arithmetic, or the first output, that holds ``batch`` samples at every batch.

    Tables of the model and what is made of them alone are none, whatever their size.

    Args:
        graph: A graph with its batch left open.
        batch: The batch that its file was exported for.
        made_up: Stored tensors that no model holds so, such as the zeros in which a recurrent layer begins: they count
            as made by the code.
    """
    search = _Search(graph, batch)
    for index in made_up:
        search.note(index)
    for node in graph.nodes:
        found = search.visit(node)
        if found is not None:
            return found
    for index in graph.outputs:
        if index in search.origins and search.holds(index):
            return search.held(index, f"an output is of shape {search.sizes(index)}")
    return None


class _Search:
    """What is known of the tensors so far."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph = graph
        self.batch = batch
        self.grows = [any(dim.per_sample for dim in tensor.shape) for tensor in graph.tensors]
        self.origins: dict[int, tuple[int, int]] = {}
        self._followed = {index for index, is_growing in enumerate(self.grows) if is_growing}

    def holds(self, index: int) -> bool:
        shape = self.graph.tensors[index].shape
        return self.batch > 1 and bool(shape) and not shape[0].per_sample and shape[0].fixed == self.batch

    def note(self, index: int, axis: int = 0) -> None:
        self.origins[index] = (index, axis)

    def sizes(self, index: int) -> list[int]:
        return [dim.fixed for dim in self.graph.tensors[index].shape]

    def held(self, index: int, what: str) -> HeldBatch:
        origin, axis = self.origins[index]
        maker = next((node for node in self.graph.nodes if origin in node.outputs), None)
        made_by = f"'{self.graph.tensors[origin].name[:200]}'" if maker is None else _named(maker)
        return HeldBatch(
            origin=origin,
            axis=axis,
            is_written=origin not in self._followed,
            reason=f"{what} at every batch, of which {self.batch} samples are written into {made_by}.",
        )

    def visit(self, node: Node) -> HeldBatch | None:
        """Follow the batch through a node to those of its results that do not grow."""
        inputs = [index for index in node.inputs if index >= 0]
        results = [index for index in node.outputs if not self.grows[index]]
        if node.kind in _WORKING and len(results) == len(node.outputs):
            for index in node.inputs[: _OPERANDS.get(node.kind, 1)]:
                if index in self.origins:
                    return self.held(index, f"{_named(node)} takes {self.sizes(index)}")
        origin = next((self.origins[index] for index in inputs if index in self.origins), None)
        is_derived = any(index in self._followed for index in inputs)
        for index in results:
            if is_derived:
                self._followed.add(index)
            if origin is not None and self._may_hold(index):
                self.origins[index] = origin
            elif origin is None:
                axis = self._made_at(node, index, inputs, is_derived=is_derived)
                if axis is not None:
                    self.note(index, axis)
        return None

    def _may_hold(self, index: int) -> bool:
        return any(size and size % self.batch == 0 for size in self.sizes(index))

    def _made_at(self, node: Node, index: int, inputs: list[int], *, is_derived: bool) -> int | None:
        """The dimension in which a result has the file's batch without having it of a table."""
        if node.source_op in _GATHERS and self._is_cut(inputs):
            return 0
        if self.batch == 1:
            return None
        if node.attributes.get("function") in _REPEATING and inputs and not is_derived:
            sizes, before = self.sizes(index), self.sizes(inputs[0])
            before = [1] * (len(sizes) - len(before)) + before
            # Coordinates of a plane are repeated along both of its sides.
            repeated = [axis for axis, size in enumerate(sizes) if size == self.batch and before[axis] == 1]
            return repeated[0] if repeated and (repeated[0] == 0 or len(sizes) > _PLANE_RANK) else None
        # Of one dimension are ranges, whose length may be that of a sequence, and losses side by side.
        if not self.holds(index) or len(self.sizes(index)) == 1:
            return None
        return 0 if (node.kind in _CHOOSING if is_derived else node.kind in _MAKING) else None

    def _is_cut(self, inputs: list[int]) -> bool:
        """Whether there are indices for the samples of one batch alone, which takes as many of any other."""
        shapes = [self.graph.tensors[index].shape for index in inputs[:2]]
        return len(shapes) > 1 and all(shapes) and bool(shapes[0][0].per_sample) and shapes[1][0].fixed == self.batch


def _named(node: Node) -> str:
    name = node.source_op or str(node.kind)
    return f"{name} of '{node.scope[:200]}'" if node.scope else name
