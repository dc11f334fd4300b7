"""Backward passes of operators that move elements and compute nothing, in eager PyTorch on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dippm.costs.row_sums import ROW_SUM
from dippm.costs.training_step.backward import Gradients, Outputs, Rule, first_of, function_of
from dippm.costs.training_step.scatter_gradients import scatter_gradient
from dippm.costs.training_step.step_builder import PERMUTING, count_elements
from dippm.graph import Node, OpKind

__all__ = ["MOVING_RULES", "SORTED_SUMS", "select_gradient"]

SORTED_SUMS = frozenset({"index_put", ROW_SUM})
"""Functions of gradients of lookups that sort the places first; the latter is an embedding's, or one without a name."""

# What writes the gradient of a lookup, by the function of that. None but the first two sort the places: the others take
# an addition of memory for each element, or copy.
_SUMMED_BY = {
    "index": "index_put",
    "unsafe_index": "index_put",
    "gather": "scatter_add",
    "index_select": "index_add",
    "take": "put",
    "masked_select": "masked_scatter",
    "roi_align": "roi_align_backward",
    "roi_pool": "roi_pool_backward",
    "ps_roi_align": "ps_roi_align_backward",
    "ps_roi_pool": "ps_roi_pool_backward",
}
# Lookups of which autograd keeps what they read from, for its shape alone.
_KEPT_FOR_ITS_SHAPE = frozenset({"gather", "take", "masked_select"})
# What a view is called that is copied.
_COPIED = "_copy"
_CONSTANT_PADS = frozenset({"pad", "constant", "constant_pad_nd", "_pad_circular"})


def _view(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    x = node.inputs[0]
    whole = builder.count_numbers(x)
    if len(node.outputs) > 1:
        sizes = [builder.count_numbers(output) for output in node.outputs]
        present = [gradient for gradient in taken if gradient is not None]
        total = tuple(sum(size) for size in zip(*sizes, strict=True))
        if total == whole:
            result = builder.new_like(x)
            builder.run(OpKind.CONCAT, present, (result,))
            gradients.give(x, result)
            return
        for gradient in present:
            gradients.give(x, gradients.make(OpKind.PAD, (gradient,), x, "slice_backward"))
        return
    gradient = first_of(taken)
    size = builder.count_numbers(node.outputs[0])
    if size == whole:
        gradients.give(x, _viewed(gradients, node, gradient))
    elif size < whole:
        gradients.give(x, gradients.make(OpKind.PAD, (gradient,), x, "slice_backward"))
    else:
        gradients.give(x, gradient)


def _viewed(gradients: Gradients, node: Node, gradient: int) -> int:
    """The gradient in the shape of a view's input: a view as well, unless it merges dimensions in another order."""
    builder = gradients.builder
    shape = builder.shape(node.inputs[0])
    function = str(node.attributes.get("function", "view"))
    is_merged = function not in PERMUTING and len(shape) <= len(builder.shape(gradient))
    # Pairs are complex numbers only where they lie side by side.
    if function == "view_as_real" or (is_merged and builder.is_permuted(gradient)):
        gradient = gradients.dense(gradient)
    return builder.view(gradient, shape, function, dtype=builder.dtype(node.inputs[0]))


def _copy(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    x = node.inputs[0]
    gradient = first_of(taken)
    function = function_of(node)
    if function.endswith(_COPIED) and function != "_reshape_copy":
        _view(gradients, node, taken)
    elif function == "block_diag":
        for index in filter(gradients.wants, node.inputs):
            gradients.give(index, builder.view(gradient, builder.shape(index), "slice"))
    elif function == "copy" and len(node.inputs) > 1:
        # The first is overwritten by the second.
        gradients.give(node.inputs[1], gradient)
        if gradients.wants(x):
            gradients.give(x, gradients.make(OpKind.FILL, (), x, "zeros"))
    elif count_elements(builder.shape(x)) != count_elements(builder.shape(gradient)):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))
    elif function in ("clone", "contiguous", "_reshape_copy"):
        shape = builder.shape(x)
        gradients.give(x, gradient if builder.shape(gradient) == shape else builder.view(gradient, shape))
    else:
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))


def _concat(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = first_of(taken)
    for index in node.inputs:
        if gradients.wants(index):
            gradients.give(index, gradients.builder.view(gradient, gradients.builder.shape(index), "slice"))


def _pad(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    # Padding by what the image holds keeps the image for its shape.
    kept = () if function_of(node) in _CONSTANT_PADS else (x,)
    gradients.give(x, gradients.make(OpKind.COPY, (first_of(taken), *kept), x, "unpad"))


def _gather(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, *indices = node.inputs
    inputs = (first_of(taken), *(index for index in indices if index >= 0))
    if function_of(node) == "nll_loss":
        gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, inputs, x, "nll_loss"))
        return
    looked_up_by = str(node.attributes.get("function"))
    function = _SUMMED_BY.get(looked_up_by, ROW_SUM)
    if looked_up_by in _KEPT_FOR_ITS_SHAPE:
        gradients.builder.view(x, gradients.builder.shape(x))
    gradients.give(x, gradients.make(OpKind.SCATTER, inputs, x, function))


def _lookup(gradients: Gradients, node: Node, taken: Outputs) -> None:
    table, *indices = node.inputs
    if table not in gradients.sparse_tables:
        _gather(gradients, node, taken)
        return
    builder = gradients.builder
    gradient = gradients.dense(first_of(taken))
    places = [index for index in indices if index >= 0]
    if len(places) > 1:
        # Bags hand their gradient to each of the rows that they sum.
        shape = (*builder.shape(places[0]), builder.shape(table)[-1])
        values = builder.new_tensor(shape, builder.dtype(gradient), name="values")
        builder.run(OpKind.GATHER, (gradient, places[1]), (values,), function="index_select")
        gradient = values
    rows = builder.as_matrix(gradient)
    gradients.put(table, gradient if rows is None else rows)
    gradients.rows[table] = places[0]


def select_gradient(gradients: Gradients, node: Node, taken: Outputs, *, kept: Sequence[int] = ()) -> None:
    """The rule of operators that choose elements and tell their places: written back to these, among zeros.

    Args:
        gradients: The gradients so far.
        node: A node of the forward pass; its second output are the places.
        taken: The gradients of its outputs.
        kept: What autograd keeps beside the places.
    """
    x = node.inputs[0]
    builder = gradients.builder
    zeros = gradients.make(OpKind.FILL, kept, x, "zeros")
    result = builder.new_tensor(builder.shape(x), builder.dtype(x), alias_of=zeros)
    inputs = (zeros, *node.outputs[1:2], first_of(taken))
    builder.run(OpKind.SCATTER, inputs, (result,), function="scatter")
    gradients.give(x, result)


MOVING_RULES: Mapping[OpKind, Rule] = {
    OpKind.VIEW: _view,
    OpKind.COPY: _copy,
    OpKind.CONCAT: _concat,
    OpKind.PAD: _pad,
    OpKind.EMBEDDING: _lookup,
    OpKind.GATHER: _gather,
    OpKind.SCATTER: scatter_gradient,
    OpKind.SORT: select_gradient,
}
"""The rule of each kind."""
