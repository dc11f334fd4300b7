"""Takes fused attention apart into the two products and the softmax that ran before there was a fused kernel."""

from __future__ import annotations

from dataclasses import replace

from dippm.graph.expansion import Expansion
from dippm.graph.graph import Graph, Node
from dippm.graph.op_kind import OpKind

__all__ = ["unfuse_attention"]


def unfuse_attention(graph: Graph) -> Graph:
    """The same model with every fused attention as ``dropout(softmax(scale * q k^T + mask)) v``.

    As models wrote it for PyTorch before 2.0, and as they still run with fused attention switched off: the scores of
    all queries and keys are written to memory, scaled, masked where there is a mask, normalised, and partly dropped
    where the model drops out.

    Attention with fewer heads of keys than of queries stays as it is.

    Args:
        graph: Any graph.

    Returns:
        A new graph; the one that was given where it has no such node.
    """
    if not any(_is_plain(graph, node) for node in graph.nodes):
        return graph
    unfused = _Unfused(graph, name="attention")
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


class _Unfused(Expansion):
    def take_apart(self, node: Node) -> None:
        query, key, value = node.inputs[:3]
        mask = node.inputs[3] if len(node.inputs) > 3 else -1
        source = self.tensors[key]
        turned = (*source.shape[:-2], source.shape[-1], source.shape[-2])
        transposed = self.view(node, key, turned, "transpose")
        shape = (*self.tensors[query].shape[:-1], turned[-1])
        scores = self.compute(node, OpKind.MATMUL, (query, transposed), shape)
        scores = self.compute(node, OpKind.MUL, (scores,), shape, releases=(scores,))
        if mask >= 0 or node.attributes.get("is_causal") is True:
            kind = OpKind.ADD if mask >= 0 else OpKind.BINARY
            inputs = (scores, mask) if mask >= 0 else (scores,)
            scores = self.compute(node, kind, inputs, shape, releases=(scores,))
        axis = len(shape) - 1
        weights = self.compute(node, OpKind.SOFTMAX, (scores,), shape, releases=(scores,), axes=(axis,))
        if node.attributes.get("has_dropout") is True:
            weights = self.drop_out(node, weights, releases=(weights,))
        self.add_node(node, OpKind.MATMUL, (weights, value), node.outputs[0], releases=(weights, *node.releases))
