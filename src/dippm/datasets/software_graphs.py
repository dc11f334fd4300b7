"""The graph of a labelled model as the software of its label ran it."""

from __future__ import annotations

import re

from dippm.datasets.store.label import Label
from dippm.graph import Graph
from dippm.graph.passes.unfuse_attention import unfuse_attention

__all__ = ["as_measured"]

_TORCH = re.compile(r"torch (\d+)\.")
_FIRST_FUSED = 2


def as_measured(graph: Graph, label: Label) -> Graph:
    """The graph that was measured, where the model was read by newer software.

    Fused attention came with PyTorch 2.0: models that were measured before wrote their scores to memory.

    Args:
        graph: The model's graph, as it is read today.
        label: What was measured; its ``framework`` names the release, and today's is meant where it does not.
    """
    found = _TORCH.match(label.measurement.software.framework or "")
    return unfuse_attention(graph) if found and int(found[1]) < _FIRST_FUSED else graph
