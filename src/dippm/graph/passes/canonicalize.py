"""All passes that bring an exported graph back to what eager PyTorch would launch, in their order."""

from __future__ import annotations

from collections.abc import Callable

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Graph
from dippm.graph.passes.drop_filler_bias import drop_filler_bias
from dippm.graph.passes.fold_constants import fold_constants
from dippm.graph.passes.fuse_attention import fuse_attention
from dippm.graph.passes.fuse_batch_norm import fuse_batch_norm
from dippm.graph.passes.fuse_gates import fuse_gates
from dippm.graph.passes.fuse_gelu import fuse_gelu
from dippm.graph.passes.fuse_group_norm import fuse_group_norm
from dippm.graph.passes.fuse_layer_norm import fuse_layer_norm
from dippm.graph.passes.fuse_linear import fuse_linear
from dippm.graph.passes.fuse_roll import fuse_roll
from dippm.graph.passes.fuse_unbind import fuse_unbind
from dippm.graph.passes.gather_recurrent_weights import gather_recurrent_weights
from dippm.graph.passes.settle_views import settle_views

__all__ = ["FUSIONS", "canonicalize"]

Pass = Callable[[GraphEditor], None]

FUSIONS: tuple[Pass, ...] = (
    fold_constants,
    drop_filler_bias,
    fuse_linear,
    fuse_gelu,
    fuse_gates,
    fuse_layer_norm,
    fuse_batch_norm,
    fuse_group_norm,
    fuse_attention,
    fuse_roll,
    fuse_unbind,
    gather_recurrent_weights,
)
"""Passes that put decomposed operators together, in their order."""


def canonicalize(graph: Graph) -> Graph:
    """Put decomposed operators together, then settle views and copies; what nothing uses is dropped."""
    editor = GraphEditor(graph)
    editor.drop_unused()
    for fuse in FUSIONS:
        fuse(editor)
    editor.drop_unused()
    settle_views(editor)
    return editor.to_graph()
