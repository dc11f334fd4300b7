"""Takes fused attention apart into the two products and the softmax that ran before there was a fused kernel."""

from __future__ import annotations

from dataclasses import replace

from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.graph import Attribute, Graph, Node, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["unfuse_attention"]


def unfuse_attention(graph: Graph) -> Graph:
    """The same model with every fused attention as ``softmax(scale * q k^T + mask) v``.

    As models wrote it for PyTorch before 2.0, and as they still run with fused attention switched off: the scores of
    all queries and keys are written to memory, scaled, masked where there is a mask, and normalised.

    Attention with fewer heads of keys than of queries stays as it is.

    Args:
        graph: Any graph.

    Returns:
        A new graph; the one that was given where it has no such node.
    """
    if not any(_is_plain(graph, node) for node in graph.nodes):
        return graph
    unfused = _Unfused(graph)
    for node in graph.nodes:
        if _is_plain(graph, node):
            unfused.take_apart(node)
        else:
            unfused.nodes.append(node)
    return replace(graph, tensors=tuple(unfused.tensors), nodes=tuple(unfused.nodes))


def _is_plain(graph: Graph, node: Node) -> bool:
    if node.kind is not OpKind.ATTENTION:
        return False
    query, key = (graph.tensors[index].shape for index in node.inputs[:2])
    return len(query) == len(key) >= 3 and query[:-2] == key[:-2]


class _Unfused:
    def __init__(self, graph: Graph) -> None:
        self.tensors: list[TensorSpec] = list(graph.tensors)
        self.nodes: list[Node] = []

    def take_apart(self, node: Node) -> None:
        query, key, value = node.inputs[:3]
        mask = node.inputs[3] if len(node.inputs) > 3 else -1
        source = self.tensors[key]
        turned = (*source.shape[:-2], source.shape[-1], source.shape[-2])
        transposed = self._tensor(turned, source.dtype, alias_of=key if source.alias_of is None else source.alias_of)
        self._node(node, OpKind.VIEW, (key,), transposed, function="transpose")
        shape = (*self.tensors[query].shape[:-1], turned[-1])
        scores = self._computed(node, OpKind.MATMUL, (query, transposed), shape, ())
        scores = self._computed(node, OpKind.MUL, (scores,), shape, (scores,))
        if mask >= 0 or node.attributes.get("is_causal") is True:
            kind = OpKind.ADD if mask >= 0 else OpKind.BINARY
            inputs = (scores, mask) if mask >= 0 else (scores,)
            scores = self._computed(node, kind, inputs, shape, (scores,))
        axis = len(shape) - 1
        weights = self._computed(node, OpKind.SOFTMAX, (scores,), shape, (scores,), axes=(axis,))
        self.nodes.append(
            Node(
                kind=OpKind.MATMUL,
                inputs=(weights, value),
                outputs=node.outputs[:1],
                scope=node.scope,
                source_op=node.source_op,
                releases=(weights, *node.releases),
            )
        )

    def _tensor(self, shape: Shape, dtype: DType, *, alias_of: int | None = None) -> int:
        self.tensors.append(TensorSpec(name="attention", shape=shape, dtype=dtype, alias_of=alias_of))
        return len(self.tensors) - 1

    def _computed(
        self,
        node: Node,
        kind: OpKind,
        inputs: tuple[int, ...],
        shape: Shape,
        releases: tuple[int, ...],
        **attributes: Attribute,
    ) -> int:
        result = self._tensor(shape, self.tensors[node.inputs[0]].dtype)
        self._node(node, kind, inputs, result, releases=releases, **attributes)
        return result

    def _node(
        self,
        node: Node,
        kind: OpKind,
        inputs: tuple[int, ...],
        output: int,
        *,
        releases: tuple[int, ...] = (),
        **attributes: Attribute,
    ) -> None:
        self.nodes.append(
            Node(
                kind=kind,
                inputs=inputs,
                outputs=(output,),
                attributes=attributes,
                scope=node.scope,
                source_op=node.source_op,
                releases=releases,
            )
        )
