"""A graph being written anew, with several nodes in place of some of its own."""

from __future__ import annotations

from dataclasses import replace

from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.graph import MOST_RUNS, Attribute, Graph, Node, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["Expansion"]


class Expansion:
    """The tensors of a graph and more, and the nodes so far.

    Args:
        graph: The graph; its tensors keep their numbers.
        name: Name of the tensors that are added.
    """

    def __init__(self, graph: Graph, *, name: str) -> None:
        self.tensors: list[TensorSpec] = list(graph.tensors)
        self.nodes: list[Node] = []
        self._name = name

    def add_tensor(self, shape: Shape, dtype: DType, *, alias_of: int | None = None) -> int:
        """Add a tensor."""
        self.tensors.append(TensorSpec(name=self._name, shape=shape, dtype=dtype, alias_of=alias_of))
        return len(self.tensors) - 1

    def add_node(
        self,
        stands_for: Node,
        kind: OpKind,
        inputs: tuple[int, ...],
        output: int,
        *,
        releases: tuple[int, ...] = (),
        **attributes: Attribute,
    ) -> None:
        """Append a node that runs in place of another one, as often, under its scope and name."""
        if MOST_RUNS in stands_for.attributes:
            attributes[MOST_RUNS] = stands_for.attributes[MOST_RUNS]
        self.nodes.append(
            Node(
                kind=kind,
                inputs=inputs,
                outputs=(output,),
                attributes=attributes,
                scope=stands_for.scope,
                source_op=stands_for.source_op,
                releases=releases,
            )
        )

    def compute(
        self,
        stands_for: Node,
        kind: OpKind,
        inputs: tuple[int, ...],
        shape: Shape,
        *,
        releases: tuple[int, ...] = (),
        **attributes: Attribute,
    ) -> int:
        """Append a node with a new result, of the type of the other node's first input."""
        result = self.add_tensor(shape, self.tensors[stands_for.inputs[0]].dtype)
        self.add_node(stands_for, kind, inputs, result, releases=releases, **attributes)
        return result

    def drop_out(self, stands_for: Node, index: int, *, releases: tuple[int, ...] = ()) -> int:
        """Append dropout of a tensor, which also writes its mask."""
        source = self.tensors[index]
        result, mask = (self.add_tensor(source.shape, dtype) for dtype in (source.dtype, DType.BOOL))
        self.add_node(stands_for, OpKind.DROPOUT, (index,), result, releases=(*releases, mask))
        self.nodes[-1] = replace(self.nodes[-1], outputs=(result, mask))
        return result

    def view(self, stands_for: Node, index: int, shape: Shape, function: str) -> int:
        """Append a view of a tensor."""
        source = self.tensors[index]
        result = self.add_tensor(shape, source.dtype, alias_of=index if source.alias_of is None else source.alias_of)
        self.add_node(stands_for, OpKind.VIEW, (index,), result, function=function)
        return result
