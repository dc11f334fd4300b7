"""Drops what leads to no output."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Graph

__all__ = ["remove_dead_nodes"]


def remove_dead_nodes(graph: Graph) -> Graph:
    """The graph without nodes and tensors that no output depends on."""
    return GraphEditor(graph).to_graph()
