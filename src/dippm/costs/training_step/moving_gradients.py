"""Backward passes of operators that move elements and compute nothing, in eager PyTorch on CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from dippm.costs.training_step.backward import Gradients, Outputs, Rule, first_of, function_of
from dippm.costs.training_step.step_builder import PERMUTING, count_elements
from dippm.graph import Node, OpKind

__all__ = ["MOVING_RULES"]

_CONSTANT_PADS = frozenset({"pad", "constant", "constant_pad_nd", "_pad_circular"})


def _view(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    x = node.inputs[0]
    whole = count_elements(builder.shape(x))
    if len(node.outputs) > 1:
        sizes = [count_elements(builder.shape(output)) for output in node.outputs]
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
    size = count_elements(builder.shape(node.outputs[0]))
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
    if function not in PERMUTING and len(shape) <= len(builder.shape(gradient)) and builder.is_permuted(gradient):
        gradient = gradients.dense(gradient)
    return builder.view(gradient, shape, function)


def _copy(gradients: Gradients, node: Node, taken: Outputs) -> None:
    if len(node.inputs) > 1:
        _overwrite(gradients, node, taken)
        return
    builder = gradients.builder
    x = node.inputs[0]
    gradient = first_of(taken)
    function = function_of(node)
    if count_elements(builder.shape(x)) != count_elements(builder.shape(gradient)):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))
    elif function in ("clone", "copy", "contiguous", "_reshape_copy"):
        shape = builder.shape(x)
        gradients.give(x, gradient if builder.shape(gradient) == shape else builder.view(gradient, shape))
    else:
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))


def _overwrite(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """Writing one tensor over another: the first gets the gradient, what was overwritten gets zeros."""
    old, new = node.inputs[:2]
    gradients.give(new, first_of(taken))
    if gradients.wants(old):
        gradients.give(old, gradients.make(OpKind.FILL, (), old, "zeros"))


def _sort(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """The values that were picked go back to where they were: autograd keeps the places."""
    if taken[0] is not None:
        x = node.inputs[0]
        gradients.give(x, gradients.make(OpKind.SCATTER, (taken[0], *node.outputs[1:2]), x, "add"))


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
    gradients.give(x, gradients.make(OpKind.SCATTER, inputs, x, "add"))


def _scatter(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = first_of(taken)
    x, *rest = node.inputs
    indices = [index for index in rest if index >= 0 and not gradients.wants(index)]
    if gradients.wants(x):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, "clone"))
    for index in rest:
        if gradients.wants(index):
            gradients.give(index, gradients.make(OpKind.GATHER, (gradient, *indices), index, "gather"))


MOVING_RULES: Mapping[OpKind, Rule] = {
    OpKind.VIEW: _view,
    OpKind.COPY: _copy,
    OpKind.CONCAT: _concat,
    OpKind.PAD: _pad,
    OpKind.EMBEDDING: _gather,
    OpKind.GATHER: _gather,
    OpKind.SCATTER: _scatter,
    OpKind.SORT: _sort,
}
"""The rule of each kind."""
