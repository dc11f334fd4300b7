"""Which outputs of a model have a loss of their own beside its first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from dippm.costs.training_step.backward import Gradients
from dippm.graph import Graph, Node

__all__ = ["find_trained_outputs"]


def find_trained_outputs(
    graph: Graph, nodes: Sequence[Node], outputs: Iterable[int], gradients: Gradients
) -> tuple[int, ...]:
    """The first output, and each further one that leads to a weight where none before it does.

    What counts is where a weight is used, not the weight: heads beside the first output, and the steps of a loop over
    one cell, have uses of their own. Hidden states, caches of keys and values, attention weights and the last states of
    a recurrent layer have none: a gradient passes all that they lead to anyway.

    Args:
        graph: The model.
        nodes: Its forward pass.
        outputs: Outputs that need a gradient, in the model's order.
        gradients: Which tensors need one.

    Returns:
        Some of the outputs, in their order.
    """
    first, *others = dict.fromkeys(outputs)
    if not others:
        return (first,)
    writers: defaultdict[int, list[int]] = defaultdict(list)
    varying = set(graph.inputs)
    uses = set()
    for position, node in enumerate(nodes):
        written = (*node.outputs, *gradients.written_through(node))
        if not varying.isdisjoint(node.inputs):
            varying.update(written)
        if gradients.goes_through(node):
            for tensor in written:
                writers[tensor].append(position)
            # A weight, or what was made of weights alone: a copy in 16 bits serves many uses.
            if any(gradients.wants(tensor) and tensor not in varying for tensor in node.inputs):
                uses.add(position)
    passed: set[int] = set()

    def has_new_use(output: int) -> bool:
        pending, is_new = [output], False
        while pending:
            for position in writers.get(pending.pop(), ()):
                if position not in passed:
                    passed.add(position)
                    is_new |= position in uses
                    pending += filter(gradients.wants, nodes[position].inputs)
        return is_new

    has_new_use(first)
    return (first, *filter(has_new_use, others))
