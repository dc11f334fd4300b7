"""Which inputs of a file have the time in front of the batch, as the operators of its graph tell."""

from __future__ import annotations

from collections.abc import Iterable

from dippm.frontends.time_first import TimeFirst, describe_layer, inputs_before, is_batch_the_time
from dippm.graph import RECURRENT_KINDS, Graph, Node, OpKind, TensorRole

__all__ = ["find_time_first", "has_batch_as_time"]

_STATE_RANK = 3


def find_time_first(graph: Graph) -> TimeFirst | None:
    """The first layer to which the batch is the time, and the inputs that it and others like it get their time from.

    A recurrent layer reads [time, batch, features]; attention is one step's with others of its sample, and never
    across samples. Initial states that are inputs of [layers, batch, units] have the batch in the second dimension too.

    Args:
        graph: The graph as it was read, with the batch in the first dimension of its inputs.

    Returns:
        The layer and the inputs; None where there is none, or where its time comes from no input.
    """
    layers = [node for node in graph.nodes if _takes_batch_as_time(graph, node)]
    found = {position for node in layers for position in inputs_before(graph, node.inputs[0])}
    if not found:
        return None
    states = {position for node in layers if node.kind in RECURRENT_KINDS for position in _states(graph, node)}
    positions = tuple(sorted(found | states))
    names = tuple(graph.tensors[graph.inputs[position]].name for position in positions)
    kind = layers[0].kind
    called = kind.value.upper() if kind in RECURRENT_KINDS else "attention"
    return TimeFirst(layer=describe_layer(called, layers[0].scope), inputs=positions, names=names)


def has_batch_as_time(graph: Graph) -> bool:
    """Whether the batch is the time to any layer, wherever that comes from."""
    return any(_takes_batch_as_time(graph, node) for node in graph.nodes)


def _takes_batch_as_time(graph: Graph, node: Node) -> bool:
    if node.kind in RECURRENT_KINDS:
        return not node.attributes.get("batch_first", False) and is_batch_the_time(graph, node.inputs[0])
    if node.kind is not OpKind.ATTENTION:
        return False
    *outer, length, _ = graph.tensors[node.inputs[0]].shape
    if graph.fixed_batch is None:
        return length.per_sample > 0 and not any(dim.per_sample for dim in outer)
    # At one batch size sizes alone tell: as long as the batch, where an input has another size behind it.
    return length.fixed == graph.fixed_batch and any(
        len(shape) > 1 and shape[0].fixed == graph.fixed_batch != shape[1].fixed
        for shape in (graph.tensors[index].shape for index in graph.inputs)
    )


def _states(graph: Graph, node: Node) -> Iterable[int]:
    """Positions of the inputs that are states of a layer, whole or a layer's part of them."""
    makers = graph.producers()
    for at in (index for index in node.inputs[1:] if index >= 0):
        while makers[at] >= 0 and graph.nodes[makers[at]].kind in {OpKind.VIEW, OpKind.CONCAT}:
            at = graph.nodes[makers[at]].inputs[0]
        if graph.tensors[at].role is TensorRole.INPUT and len(graph.tensors[at].shape) == _STATE_RANK:
            yield graph.inputs.index(at)
