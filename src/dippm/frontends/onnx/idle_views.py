"""Takes out the views that leave their tensor as it is.

Whether a reshape does is known only once the batch is left open: where the model makes ``[2, N, 8]`` of ``[N, 2, 8]``,
the two are the same at the one batch of 2. While the model runs at single batches, every reshape of what it computes is
therefore written down, and those that change nothing at any batch go afterwards.
"""

from __future__ import annotations

from dippm.graph import Graph, OpKind
from dippm.graph.editor import GraphEditor

__all__ = ["IDLE_FUNCTIONS", "drop_idle_views"]

IDLE_FUNCTIONS = frozenset({"reshape", "expand"})
"""Functions of views that change nothing where they keep the shape."""


def drop_idle_views(graph: Graph) -> Graph:
    """The graph without views that keep the shape at every batch that it holds for."""
    editor = GraphEditor(graph)
    for position, node in enumerate(graph.nodes):
        if node.kind is not OpKind.VIEW or node.attributes.get("function") not in IDLE_FUNCTIONS:
            continue
        source, result = editor.node(position).inputs[0], node.outputs[0]
        if graph.tensors[source].shape == graph.tensors[result].shape:
            editor.substitute(result, source)
            editor.remove(position)
    return editor.to_graph()
