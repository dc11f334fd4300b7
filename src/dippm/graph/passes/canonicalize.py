"""All passes that bring an exported graph back to what eager PyTorch would launch, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Graph
from dippm.graph.passes.cancel_transposes import cancel_transposes
from dippm.graph.passes.copy_packed_projection import copy_packed_projection
from dippm.graph.passes.drop_filler_bias import drop_filler_bias
from dippm.graph.passes.drop_neutral_arithmetic import drop_neutral_arithmetic
from dippm.graph.passes.fold_borders import fold_borders
from dippm.graph.passes.fold_constants import fold_constants
from dippm.graph.passes.fold_weight_views import fold_weight_views
from dippm.graph.passes.fuse_attention import fuse_attention, fuse_converted_attention
from dippm.graph.passes.fuse_batch_norm import fuse_batch_norm
from dippm.graph.passes.fuse_cases import fuse_cases
from dippm.graph.passes.fuse_convolution_bias import fuse_convolution_bias
from dippm.graph.passes.fuse_einsum_attention import fuse_einsum_attention
from dippm.graph.passes.fuse_einsum_linear import fuse_einsum_linear
from dippm.graph.passes.fuse_gates import fuse_gates
from dippm.graph.passes.fuse_gelu import fuse_converted_gelu, fuse_gelu
from dippm.graph.passes.fuse_group_norm import fuse_group_norm
from dippm.graph.passes.fuse_hard_gates import fuse_hard_gates
from dippm.graph.passes.fuse_im2col import fuse_im2col
from dippm.graph.passes.fuse_layer_norm import WrittenNorms, fuse_layer_norm
from dippm.graph.passes.fuse_linear import fuse_linear
from dippm.graph.passes.fuse_moment_norm import fuse_moment_norm
from dippm.graph.passes.fuse_noted_operators import NotedOperator, fuse_noted_operators
from dippm.graph.passes.fuse_recurrent_cells import fuse_recurrent_cells
from dippm.graph.passes.fuse_reshaped_linear import fuse_reshaped_linear
from dippm.graph.passes.fuse_roll import fuse_roll
from dippm.graph.passes.fuse_rsqrt import fuse_rsqrt
from dippm.graph.passes.fuse_select import fuse_select
from dippm.graph.passes.fuse_unbind import fuse_unbind
from dippm.graph.passes.fuse_unrolled_rnn import fuse_unrolled_rnn
from dippm.graph.passes.fuse_variance import fuse_variance
from dippm.graph.passes.gather_recurrent_weights import gather_recurrent_weights
from dippm.graph.passes.order_images import order_images
from dippm.graph.passes.settle_recurrent_layout import settle_recurrent_layout
from dippm.graph.passes.settle_views import settle_views
from dippm.graph.passes.stack_recurrent_layers import stack_recurrent_layers
from dippm.graph.passes.take_batch_first import take_batch_first

__all__ = ["CONVERTED_FUSIONS", "FUSIONS", "canonicalize"]

Pass = Callable[[GraphEditor], None]

FUSIONS: tuple[Pass, ...] = (
    fold_constants,
    drop_filler_bias,
    fuse_linear,
    fuse_recurrent_cells,
    fuse_gelu,
    fuse_gates,
    fuse_cases,
    fuse_layer_norm,
    fuse_batch_norm,
    fuse_group_norm,
    fuse_variance,
    fuse_rsqrt,
    fuse_attention,
    fuse_roll,
    fuse_unbind,
    fuse_unrolled_rnn,
    fuse_im2col,
    copy_packed_projection,
    gather_recurrent_weights,
)
"""Passes that put decomposed operators together, in their order."""


CONVERTED_FUSIONS: tuple[Pass, ...] = (
    drop_neutral_arithmetic,
    fold_weight_views,
    fuse_einsum_linear,
    fuse_moment_norm,
    fuse_converted_gelu,
    fuse_hard_gates,
    cancel_transposes,
    order_images,
    fold_borders,
    fuse_convolution_bias,
    fuse_reshaped_linear,
    fuse_einsum_attention,
    fuse_converted_attention,
    stack_recurrent_layers,
    settle_recurrent_layout,
    take_batch_first,
    fuse_select,
)
"""Passes that put together, before the others, what only the converters of other frameworks take apart."""


def canonicalize(
    graph: Graph,
    *,
    is_converted: bool = False,
    norms: WrittenNorms | None = None,
    noted: Mapping[str, NotedOperator] | None = None,
) -> Graph:
    """Put decomposed operators together, then settle views and copies; what nothing uses is dropped.

    Args:
        graph: The graph as it was read.
        is_converted: Whether it came through the converter of a framework other than PyTorch. Parts that a PyTorch
            module would launch one by one are then what the converter made of one operator.
        norms: Which norms that stand written out were one operator; None where all were.
        noted: What else was part of one operator, by the names of the tensors that the parts write.
    """
    if is_converted:
        for fuse in CONVERTED_FUSIONS:
            # Each sees what those before it put in and not what they took out.
            editor = GraphEditor(graph)
            fuse(editor)
            graph = editor.to_graph()
    if noted:
        editor = GraphEditor(graph)
        editor.drop_unused()
        fuse_noted_operators(editor, noted)
        graph = editor.to_graph()
    editor = GraphEditor(graph)
    editor.drop_unused()
    for fuse in FUSIONS:
        if fuse is fuse_layer_norm:
            fuse_layer_norm(editor, norms)
        else:
            fuse(editor)
    editor.drop_unused()
    settle_views(editor)
    return editor.to_graph()
