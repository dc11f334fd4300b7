"""The graph of a labelled model as the software of its label ran it."""

from __future__ import annotations

from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_graph import graph_of_release
from dippm.errors import UsageError
from dippm.graph import Graph

__all__ = ["as_measured", "software_of"]


def software_of(framework: str) -> Software:
    """The software of a label.

    Args:
        framework: The framework and its release, as labels name them: ``"torch 1.12"``, with other packages after a
            comma; where it is something else, today's is meant.
    """
    try:
        return Software.parse(framework.partition(",")[0])
    except UsageError:
        return DEFAULT_SOFTWARE


def as_measured(graph: Graph, framework: str) -> Graph:
    """The graph that was measured, where the model was read by newer software.

    Args:
        graph: The model's graph, as it is read today.
        framework: As for :func:`software_of`.
    """
    return graph_of_release(graph, software_of(framework))
