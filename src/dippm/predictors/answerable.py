"""Whether a graph can be predicted at all, and which of its operators nothing is known of."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind

__all__ = [
    "DOUBT_PER_UNSUPPORTED_SHARE",
    "UNSUPPORTED_KINDS",
    "check_answerable",
    "name_unsupported",
    "warn_of_batch",
]

#: Operators without a rule of their own.
UNSUPPORTED_KINDS = frozenset({OpKind.UNKNOWN, OpKind.CONTROL_FLOW})
#: An operator without a rule may cost many times its bytes: all of its predicted time counts as doubt.
DOUBT_PER_UNSUPPORTED_SHARE = 1.0


def check_answerable(graph: Graph, batches: Sequence[int]) -> None:
    """Refuse a graph that holds for other batches only, or that runs nothing.

    Raises:
        UnsupportedError: ``graph.fixed_batch`` where the graph holds for another batch or for larger ones only;
            ``graph.empty`` where no operator runs.
    """
    others = sorted({batch for batch in batches if graph.fixed_batch not in (None, batch)})
    if others:
        raise UnsupportedError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason} Got {others}.",
            code="graph.fixed_batch",
            cure="Ask for that batch, or export the model with a dynamic batch.",
        )
    if min(batches, default=graph.smallest_batch) < graph.smallest_batch:
        raise UnsupportedError(
            f"'{graph.source}' holds from batch {graph.smallest_batch} on: smaller ones leave nothing in some of its "
            f"slices. Got {min(batches)}.",
            code="graph.fixed_batch",
            cure="Ask for that batch by itself; it is then read for that batch alone.",
        )
    if all(node.kind is OpKind.VIEW for node in graph.nodes):
        raise UnsupportedError(
            f"'{graph.source}' runs no operator on the device: it only hands on its inputs.",
            code="graph.empty",
            cure="Export the model that does the work.",
        )


def warn_of_batch(graph: Graph, batch: int) -> tuple[str, ...]:
    """What is said of a batch beyond those that the model was read at."""
    if graph.is_proved_for(batch):
        return ()
    return (
        f"The graph was read at batches up to {graph.proved_batch}: whether it grows on like that to {batch} was not "
        f"looked at. Read it with batch_hint={batch} of dippm.load, or ask the model itself.",
    )


def name_unsupported(graph: Graph) -> str:
    """Operators without a rule of their own with their counts, for a warning; "" where there are none."""
    return ", ".join(f"{name} ({count})" for name, count in sorted(graph.unsupported_ops.items()))
