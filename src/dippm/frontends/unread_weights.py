"""Weights that no operator of a graph reads, such as those of a part that the inputs do not reach."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

from dippm.graph import Graph, TensorRole

__all__ = ["warn_of_unread_weights"]

# Many models have a small layer that only another task needs.
_NOTABLE_SHARE, _NOTABLE_COUNT = 0.01, 100_000_000
_MOST_PARTS = 3


def warn_of_unread_weights(graph: Graph) -> Graph:
    """The graph with a warning that names the modules that no operator reads, where they hold a notable part of it.

    That is 1 % of all weights, or 100 million.

    Args:
        graph: Its parameters are named by their paths, parts joined by dots.
    """
    read = {index for node in graph.nodes for index in node.inputs if index >= 0}
    read |= {base for index in read if (base := graph.tensors[index].alias_of) is not None}
    weights = {
        index: tensor
        for index, tensor in enumerate(graph.tensors)
        if tensor.role is TensorRole.PARAMETER and tensor.alias_of is None
    }
    reached = {path for index in read & weights.keys() for path in _paths(weights[index].name)}
    counts: Counter[str] = Counter()
    for index in weights.keys() - read:
        part = next((path for path in _paths(weights[index].name) if path not in reached), weights[index].name)
        counts[part] += prod(fixed for _, fixed in weights[index].shape)
    if counts.total() < min(_NOTABLE_SHARE * max(graph.parameter_count, 1), _NOTABLE_COUNT):
        return graph
    parts = [part for part, _ in counts.most_common()]
    named = ", ".join(parts[:_MOST_PARTS]) + (f" and {len(parts) - _MOST_PARTS} more" if parts[_MOST_PARTS:] else "")
    warning = (
        f"No operator reads {counts.total():,} of the {graph.parameter_count:,} weights, those of {named}: they are in "
        "the memory and not in the time. Where the model uses them, give the inputs that reach them."
    )
    return replace(graph, warnings=(*graph.warnings, warning))


def _paths(name: str) -> list[str]:
    """A name's beginnings, the shortest first, and itself."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
