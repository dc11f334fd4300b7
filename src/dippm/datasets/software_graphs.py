"""The graph of a labelled model as the software of its label ran it."""

from __future__ import annotations

import re

from dippm.graph import Graph
from dippm.graph.passes.unfuse_attention import unfuse_attention

__all__ = ["as_measured"]

_TORCH = re.compile(r"torch (\d+)\.")
_FIRST_FUSED = 2


def as_measured(graph: Graph, framework: str) -> Graph:
    """The graph that was measured, where the model was read by newer software.

    Fused attention came with PyTorch 2.0: models that were measured before wrote their scores to memory.

    Args:
        graph: The model's graph, as it is read today.
        framework: The framework and its release, as labels name them: ``"torch 1.12"``; where it is something else,
            today's is meant.
    """
    found = _TORCH.match(framework)
    return unfuse_attention(graph) if found and int(found[1]) < _FIRST_FUSED else graph
