"""Backward passes of element-wise operators and reductions, in eager PyTorch on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dippm.costs.training_step.backward import Gradients, Outputs, Rule, first_of, function_of
from dippm.costs.training_step.gradient_chains import (
    GRADIENT_CHAINS,
    OPERAND_CHAINS,
    run_chain,
    run_operand_chains,
)
from dippm.costs.training_step.moving_gradients import select_gradient
from dippm.graph import ACTIVATION_KINDS, Node, OpKind

__all__ = ["ELEMENTWISE_RULES", "LOSSES", "gradients_of_inputs", "reduce_gradient"]

# Element-wise operators whose gradient needs the result and not the input.
_KEEPS_RESULT = frozenset({OpKind.RELU, OpKind.SIGMOID, OpKind.TANH})
_KEEPS_RESULT_IN_PLACE = frozenset({OpKind.LEAKY_RELU, OpKind.ELU})
_RESULT_FUNCTIONS = frozenset({"exp"})
_FREE_FUNCTIONS = frozenset({"neg", "positive", "identity", "conj_physical", "real", "frac"})
_FLAT_FUNCTIONS = frozenset({"floor", "ceil", "round", "trunc", "sign", "sgn"})
_MASK_FUNCTIONS = frozenset({"where", "masked_fill"})
#: Losses of PyTorch whose gradient is one kernel over what is predicted.
LOSSES = frozenset(
    {
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "multi_margin_loss",
        "multilabel_margin_loss_forward",
    }
)
# Losses that are the same whichever of their two tensors is called the target.
_DISTANCES = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss"})
_REDUCE_INPUT_FUNCTIONS = LOSSES
_REDUCE_BOTH_FUNCTIONS = frozenset({"prod", "max", "min", "median", "mode"})
# Gradients that divide by the deviation first.
_DEVIATIONS = frozenset({"std", "std_mean"})
_VARIANCES = frozenset({"var", "var_mean", *_DEVIATIONS})
_CELLS = frozenset({"lstm_cell", "gru_cell"})
_CHOOSING_FUNCTIONS = frozenset({"max", "min", "median", "mode"})


def _activation(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, *others = node.inputs
    is_in_place = gradients.builder.base(x) == gradients.builder.base(node.outputs[0])
    keeps_result = node.kind in _KEEPS_RESULT or (is_in_place and node.kind in _KEEPS_RESULT_IN_PLACE)
    gradient = first_of(taken)
    kept = node.outputs[0] if keeps_result else gradients.builder.saved_inputs.get(node.outputs[0], x)
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, (gradient, kept), x, node.kind.value))
    for other in others:
        if gradients.wants(other):
            full = gradients.make(OpKind.ELEMENTWISE_GRAD, (gradient, kept), x, node.kind.value)
            gradients.give(other, full)


def _unary(gradients: Gradients, node: Node, taken: Outputs) -> None:
    function = str(node.attributes.get("function", ""))
    x = node.inputs[0]
    if function in _FLAT_FUNCTIONS and not gradients.builder.dtype(x).is_complex:
        gradients.give(x, gradients.make(OpKind.FILL, (), x, "zeros"))
        return
    if function in GRADIENT_CHAINS:
        _chain(gradients, node, function, taken)
        return
    if function in _FREE_FUNCTIONS:
        kept: tuple[int, ...] = ()
    else:
        kept = (node.outputs[0],) if function in _RESULT_FUNCTIONS else (x,)
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, (first_of(taken), *kept), x, function))


def _chain(gradients: Gradients, node: Node, name: str, taken: Outputs) -> None:
    gradients.give(node.inputs[0], _chained(gradients, node, name, first_of(taken)))


def _chained(gradients: Gradients, node: Node, name: str, gradient: int, *, place: int = 0) -> int:
    """What a chain computes for the first input, of the gradient of one of the results."""
    x = node.inputs[0]
    builder = gradients.builder
    if builder.shape(gradient) != builder.shape(x):
        gradient = _expanded(gradients, gradient, x)
    operands = {"g": gradient, "x": x, "y": node.outputs[place]}
    if len(node.inputs) > 1:
        operands["b"] = node.inputs[1]
    return run_chain(builder, name, operands, like=x)


def _clip(gradients: Gradients, node: Node, taken: Outputs) -> None:
    bounds = len(node.inputs) - 1
    if "clamp" in node.source_op and bounds:
        _operand_chains(gradients, node, "clamp_min" if bounds == 1 else "clamp", taken)
    elif "clamp" in node.source_op:
        _chain(gradients, node, "clamp", taken)
    else:
        _activation(gradients, node, taken)


def _power(gradients: Gradients, node: Node, taken: Outputs) -> None:
    if len(node.inputs) == 1:
        _chain(gradients, node, "pow", taken)
    else:
        _operand_chains(gradients, node, "pow", taken)


def _operand_chains(gradients: Gradients, node: Node, name: str, taken: Outputs) -> None:
    """Hand each input of an operator of several what its own chain computes."""
    builder = gradients.builder
    wanted = [position for position, index in enumerate(node.inputs) if gradients.wants(index)]
    letters = {letter: index for letter, index in zip("xbc", node.inputs, strict=False) if index >= 0}
    if name == "pow":
        # Autograd keeps the result for the exponent, whether that has a gradient or not.
        builder.view(node.outputs[0], builder.shape(node.outputs[0]))
    operands = {"g": first_of(taken), "y": node.outputs[0], **letters}
    results = run_operand_chains(builder, name, operands, wanted)
    for position in sorted(results):
        gradients.give(node.inputs[position], results[position])


def _division(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = first_of(taken)
    x, *rest = node.inputs
    if rest and gradients.wants(rest[0]):
        operands = {"g": gradient, "x": x, "b": rest[0]}
        divisor = run_chain(gradients.builder, "divisor", operands, like=gradient)
        gradients.give(rest[0], divisor)
    if gradients.wants(x):
        result = gradients.builder.new_like(gradient)
        gradients.builder.run(OpKind.ELEMENTWISE_GRAD, (gradient, *rest), (result,), function="div")
        gradients.give(x, result)


def _sum(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = first_of(taken)
    for position, index in enumerate(node.inputs):
        if not gradients.wants(index):
            continue
        # The first of ``rsub`` is what is taken away.
        if node.kind is OpKind.SUB and position == (0 if node.source_op.endswith("rsub") else 1):
            negated = gradients.make(OpKind.UNARY, (gradient,), gradient, "neg")
            gradients.give(index, negated)
        else:
            gradients.give(index, gradient)


def _product(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradients_of_inputs(gradients, node, first_of(taken), kept=node.inputs)


def gradients_of_inputs(gradients: Gradients, node: Node, gradient: int, *, kept: Sequence[int]) -> None:
    """Hand each input its gradient, from that of the output and the other inputs.

    Args:
        gradients: The gradients so far.
        node: A node of the forward pass.
        gradient: The gradient of its output.
        kept: The inputs that the gradients are computed from, in the node's order.
    """
    given = [index for index in kept if index >= 0]
    results = []
    # The last input first, as autograd's code does, which hands them on together.
    for position, index in reversed(list(enumerate(node.inputs))):
        if not gradients.wants(index):
            continue
        if node.kind is OpKind.MUL:
            factors = [other for place, other in enumerate(node.inputs) if place != position and other >= 0]
            others = [_conjugated(gradients, factor) for factor in factors]
        elif node.kind is OpKind.DIV and position == 0:
            others = given[1:]
        else:
            others = given
        result = gradients.builder.new_like(gradient, dtype=gradients.builder.dtype(gradient))
        gradients.builder.run(
            OpKind.ELEMENTWISE_GRAD, (gradient, *dict.fromkeys(others)), (result,), function=function_of(node)
        )
        results.append((index, result))
    for index, result in reversed(results):
        gradients.give(index, result)


def _conjugated(gradients: Gradients, tensor: int) -> int:
    """A factor as the gradient of a product takes it: a conjugated copy where it is complex."""
    builder = gradients.builder
    if not builder.dtype(tensor).is_complex:
        return tensor
    copy = builder.new_like(tensor)
    builder.run(OpKind.UNARY, (tensor,), (copy,), function="conj_physical")
    return copy


def _binary(gradients: Gradients, node: Node, taken: Outputs) -> None:
    function = function_of(node)
    if function == "complex":
        # Its real part and its imaginary part are views; autograd keeps what has a gradient all the same.
        for index in node.inputs:
            if gradients.wants(index):
                gradients.builder.view(index, gradients.builder.shape(index))
            gradients.give(index, first_of(taken))
        return
    if function in _CELLS:
        _cell(gradients, node, taken)
        return
    # By a number it is a product with a logarithm, whose gradient is one kernel.
    is_by_number = function == "xlogy" and len(node.inputs) == 1
    is_complex = any(gradients.builder.dtype(i).is_complex for i in node.inputs if i >= 0)
    if function in OPERAND_CHAINS and not (is_by_number or is_complex):
        _operand_chains(gradients, node, function, taken)
        return
    kept: Sequence[int] = node.inputs
    if function == "polar":
        kept = node.outputs
    elif function == "lerp" and not any(map(gradients.wants, node.inputs[2:])):
        # The two that are mixed are not needed, their weight alone is, where it is no number.
        kept = node.inputs[2:]
    elif function in _MASK_FUNCTIONS:
        kept = [index for index in kept if index >= 0 and not gradients.builder.dtype(index).is_differentiable]
    gradients_of_inputs(gradients, node, first_of(taken), kept=kept)


def _cell(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """A step of a recurrent layer: one kernel of what its forward pass kept, and the sums for the biases.

    The gates of an LSTM are sums, whose parts share one gradient; a GRU's are not.
    """
    builder = gradients.builder
    of_input, of_hidden, state, *biases = node.inputs
    is_shared = function_of(node) == "lstm_cell"
    gates = [of_input] if is_shared else [of_input, of_hidden]
    results = [builder.new_like(index) for index in (*gates, state)]
    kept = (state, *node.outputs[1:]) if is_shared else node.outputs[1:]
    present = [gradient for gradient in taken if gradient is not None]
    for index in dict.fromkeys((of_input, of_hidden, state)):
        # Autograd keeps them for a second derivative.
        builder.view(index, builder.shape(index))
    builder.run(OpKind.ELEMENTWISE_GRAD, (*present, *kept), results, function=function_of(node))
    by_gates = [results[0], results[0] if is_shared else results[1]]
    sums: dict[int, int] = {}
    for bias, gradient in zip(biases, by_gates, strict=False):
        if gradients.wants(bias) and gradient not in sums:
            sums[gradient] = builder.new_like(bias)
            builder.run(OpKind.REDUCE, (gradient,), (sums[gradient],), function="sum")
    for index, gradient in zip((of_input, of_hidden, state), (*by_gates, results[-1]), strict=True):
        gradients.give(index, gradient)
    for bias, gradient in zip(biases, by_gates, strict=False):
        if gradients.wants(bias):
            gradients.give(bias, sums[gradient])


def _dropout(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    inputs = (first_of(taken), *node.outputs[1:])
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, inputs, x, node.kind.value))


def reduce_gradient(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """The rule of reductions, which global pooling shares."""
    x = node.inputs[0]
    builder = gradients.builder
    function = function_of(node)
    gradient = first_of(taken)
    if function == "sum":
        gradients.give(x, _expanded(gradients, gradient, x))
        return
    if function in _VARIANCES or function == "aminmax":
        if function in _DEVIATIONS:
            builder.view(node.outputs[0], builder.shape(node.outputs[0]))
        _several_results(gradients, node, taken)
        return
    if function in GRADIENT_CHAINS:
        _chain(gradients, node, function, taken)
        return
    if function in _DISTANCES:
        # Of either by the same kernel; the second is what is trained where the first is a target that was detached.
        for index in reversed(node.inputs[:2]):
            if gradients.wants(index):
                result = builder.new_like(index)
                operands = (_expanded(gradients, gradient, index), *node.inputs)
                builder.run(OpKind.ELEMENTWISE_GRAD, operands, (result,), function=function)
                gradients.give(index, result)
        return
    kept: Sequence[int] = node.inputs if function in _REDUCE_INPUT_FUNCTIONS else ()
    if function in _REDUCE_BOTH_FUNCTIONS:
        kept = (x, node.outputs[0])
    if function in _CHOOSING_FUNCTIONS and len(node.outputs) > 1:
        kept = node.outputs[1:2]
    result = builder.new_like(x)
    builder.run(OpKind.ELEMENTWISE_GRAD, (_expanded(gradients, gradient, x), *kept), (result,), function=function)
    gradients.give(x, result)


def _several_results(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """Variances, with the mean or without it, and both extremes: each result has a gradient, and these are added."""
    x = node.inputs[0]
    builder = gradients.builder
    # Autograd keeps the input, whichever result is used.
    builder.view(x, builder.shape(x))
    parts: list[int] = []
    begin = 0
    for place, gradient in enumerate(taken):
        if gradient is None:
            continue
        begin = len(builder.nodes)
        if place and function_of(node) in _VARIANCES:
            parts.append(builder.new_like(x))
            builder.run(OpKind.ELEMENTWISE_GRAD, (_expanded(gradients, gradient, x),), (parts[-1],), function="mean")
        else:
            name = "extreme" if function_of(node) == "aminmax" else "var"
            parts.append(_chained(gradients, node, name, gradient, place=place))
    if len(parts) > 1:
        total = builder.new_like(x)
        builder.run(OpKind.ADD, tuple(parts), (total,), function=function_of(node))
        parts.append(total)
        # One statement computes the last and adds it.
        end = len(builder.nodes) - 1
        builder.chain_ends.update(dict.fromkeys(range(begin, end), end))
    gradients.give(x, parts[-1])


def _expanded(gradients: Gradients, gradient: int, tensor: int) -> int:
    return gradients.builder.view(gradient, gradients.builder.shape(tensor), "expand")


def _cast(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradients.give(node.inputs[0], first_of(taken))


def _cumulative(gradients: Gradients, node: Node, taken: Outputs) -> None:
    if len(node.outputs) > 1:
        select_gradient(gradients, node, taken, kept=node.inputs)
    else:
        function = function_of(node)
        _chain(gradients, node, function if function in GRADIENT_CHAINS else "cumsum", taken)


def _transform(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """A Fourier transform is transformed back; what came from real numbers in full, of which the real part is given."""
    x, y = node.inputs[0], node.outputs[0]
    builder = gradients.builder
    gradient = first_of(taken)
    is_from_real = builder.dtype(y).is_complex and not builder.dtype(x).is_complex
    is_to_real = builder.dtype(x).is_complex and not builder.dtype(y).is_complex
    result = builder.new_like(x, dtype=builder.dtype(y) if is_from_real else None)
    if is_from_real and builder.shape(y) != builder.shape(x):
        padded = builder.new_like(result)
        builder.run(OpKind.PAD, (gradient,), (padded,), function="slice_backward")
        gradient = padded
    # Autograd keeps real numbers for their size.
    inputs = (gradient, x) if is_from_real else (gradient,)
    builder.run(node.kind, inputs, (result,), node.source_op, attributes=node.attributes)
    if is_to_real:
        # Each frequency between the first and the last stands for two.
        doubled = builder.view(result, builder.shape(x), "slice")
        builder.run(OpKind.MUL, (result,), (doubled,), node.source_op)
    gradients.give(x, result)


ELEMENTWISE_RULES: Mapping[OpKind, Rule] = {
    **dict.fromkeys(ACTIVATION_KINDS, _activation),
    OpKind.CLIP: _clip,
    OpKind.ADD: _sum,
    OpKind.SUB: _sum,
    OpKind.MUL: _product,
    OpKind.DIV: _division,
    OpKind.POW: _power,
    OpKind.UNARY: _unary,
    OpKind.BINARY: _binary,
    OpKind.DROPOUT: _dropout,
    OpKind.CAST: _cast,
    OpKind.REDUCE: reduce_gradient,
    OpKind.CUMULATIVE: _cumulative,
    OpKind.FFT: _transform,
}
"""The rule of each kind."""
