"""Whether a file that is to be trained was exported for training."""

from __future__ import annotations

from dataclasses import replace

from dippm.costs.conditions import Mode
from dippm.graph import Graph, OpKind

__all__ = ["check_training"]

_RANDOM_KINDS = frozenset({OpKind.DROPOUT, OpKind.RANDOM})
_MARKS = ("is_training", "has_dropout")


def check_training(graph: Graph, mode: Mode) -> Graph:
    """Warn where a file is read for training and nothing in it belongs to training.

    An exporter leaves dropout out of a file that is made for inference, and may merge batch norm into convolutions.
    That cannot be told from a model that has neither.

    Args:
        graph: A program that was read from a file as it is.
        mode: What it was read for.

    Returns:
        The graph, with a warning added where there is one.
    """
    if mode is not Mode.TRAINING or any(
        node.kind in _RANDOM_KINDS or any(node.attributes.get(mark, False) for mark in _MARKS) for node in graph.nodes
    ):
        return graph
    return replace(
        graph,
        warnings=(
            *graph.warnings,
            f"'{graph.source}' holds nothing that only training has: if its model has dropout, it was exported "
            "for inference, and the training step is predicted without it.",
        ),
    )
