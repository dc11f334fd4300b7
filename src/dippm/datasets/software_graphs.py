"""The graph of a labelled model as it ran when it was measured."""

from __future__ import annotations

from dippm.costs.conditions import Mode
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_graph import graph_of_release
from dippm.datasets.fast_norms import with_fast_norms
from dippm.datasets.imports.timm import TIMM_SOURCE
from dippm.datasets.store.label import Label
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


def as_measured(graph: Graph, label: Label) -> Graph:
    """The graph that was measured, where the model was read by newer software or its run had other norms.

    Args:
        graph: The model's graph, as it is read today.
        label: The measurement.
    """
    name = label.recipe.architecture
    if label.source.startswith(TIMM_SOURCE) and label.configuration.conditions.mode is Mode.INFERENCE:
        graph = with_fast_norms(graph, name.rpartition(":")[2])
    return graph_of_release(graph, software_of(label.measurement.software.framework))
