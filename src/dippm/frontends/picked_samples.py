"""Files whose first dimension is no batch: an input without one picks rows of it, as the edges of a graph do.

A graph network takes the features of all nodes, [nodes, features], and the ends of all edges, [2, edges]. By their
shapes alone the nodes could be samples; but no sample is picked by a number that all samples share.
"""

from __future__ import annotations

from dippm.graph import Graph, Node, OpKind, TensorRole

__all__ = ["find_picker", "warn_of_picked_samples"]


def find_picker(graph: Graph) -> str | None:
    """Name of an input without a batch whose numbers pick along the batch of a graph; None where there is none.

    Args:
        graph: The graph as it was read, with the batch in the first dimension of its inputs.
    """
    makers = graph.producers()
    for node in graph.nodes:
        if node.kind is OpKind.GATHER and _leaves_no_batch(graph, node):
            for index in node.inputs[1:]:
                if index >= 0 and (name := _origin(graph, makers, index)) is not None:
                    return name
    return None


def warn_of_picked_samples(picker: str, *, is_settled: bool) -> str:
    """What is said of such a file.

    Args:
        picker: The input that picks.
        is_settled: Whether the file's own sizes were taken, without a batch.
    """
    if is_settled:
        return (
            f"Input '{picker}', which has no batch, picks rows of the others, as edges pick nodes: no input is taken "
            "to have a batch, and all have the sizes that the file says."
        )
    return (
        f"What is called the batch here are rows that input '{picker}' picks from, as edges pick nodes: ask for as "
        "many as there are, or give the whole shape of each input with ':unbatched' behind it."
    )


def _leaves_no_batch(graph: Graph, node: Node) -> bool:
    """Whether it reads what begins with the batch, by numbers that know of none, and makes what has none.

    Edges from each node to itself may stand behind those of an input: then there are more by what is called the batch.
    """
    source = graph.tensors[node.inputs[0]].shape
    others = (*node.inputs[1:], *node.outputs)
    return bool(source and source[0].per_sample) and all(
        not dim.per_sample or dim.fixed for index in others if index >= 0 for dim in graph.tensors[index].shape
    )


def _origin(graph: Graph, makers: list[int], index: int) -> str | None:
    """The integer input that a tensor of integers comes from."""
    seen, waiting = set(), [index]
    while waiting:
        at = waiting.pop()
        if at < 0 or at in seen or graph.tensors[at].dtype.is_floating:
            continue
        seen.add(at)
        if makers[at] >= 0:
            waiting += graph.nodes[makers[at]].inputs
        elif graph.tensors[at].role is TensorRole.INPUT:
            return graph.tensors[at].name
    return None
