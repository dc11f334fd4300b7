"""What each operator's backward pass runs and reads, in eager PyTorch on CUDA (``derivatives.yaml``, PyTorch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.gradient_chains import GRADIENT_CHAINS, run_chain
from dippm.costs.training_step.step_builder import PERMUTING, count_elements
from dippm.graph import NORM_KINDS, RECURRENT_KINDS, Attribute, Node, OpKind

__all__ = ["run_backward"]

Outputs = Sequence[int | None]

# Element-wise operators whose gradient needs the result and not the input.
_KEEPS_RESULT = frozenset({OpKind.RELU, OpKind.SIGMOID, OpKind.TANH})
_KEEPS_RESULT_IN_PLACE = frozenset({OpKind.LEAKY_RELU, OpKind.ELU})
_RESULT_FUNCTIONS = frozenset({"exp", "exp2", "sqrt", "rsqrt", "reciprocal", "expm1", "tan", "erfinv"})
_FREE_FUNCTIONS = frozenset({"neg", "positive", "identity", "conj_physical", "real"})
_CONSTANT_PADS = frozenset({"pad", "constant", "constant_pad_nd", "_pad_circular"})
_MASK_FUNCTIONS = frozenset({"where", "masked_fill"})
_REDUCE_INPUT_FUNCTIONS = frozenset({"var", "var_mean"})
_REDUCE_BOTH_FUNCTIONS = frozenset({"std", "std_mean", "prod", "logsumexp", "max", "min"})


def run_backward(gradients: Gradients, node: Node) -> None:
    """Append what runs for one node, and hand its inputs their gradients.

    Args:
        gradients: The gradients so far; those of all consumers of the node's outputs have arrived.
        node: A node of the forward pass.
    """
    if not any(gradients.wants(index) for index in node.inputs):
        return
    taken = gradients.take(node.outputs)
    if all(gradient is None for gradient in taken):
        return
    _RULES.get(node.kind, _unknown)(gradients, node, taken)


def _first(taken: Outputs) -> int:
    """The gradient of the first output that has one."""
    return next(gradient for gradient in taken if gradient is not None)


# Contractions


def _convolution(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, weight = node.inputs[:2]
    builder = gradients.builder
    gradient = gradients.dense(_first(taken))
    is_transposed = node.kind is OpKind.CONV_TRANSPOSE
    # One operator for autograd: all results are there before any is handed on.
    results = []
    if gradients.wants(x):
        kind = OpKind.CONV if is_transposed else OpKind.CONV_TRANSPOSE
        result = builder.new_like(x)
        builder.run(kind, (gradient, weight), (result,), "convolution_backward", attributes=node.attributes)
        results.append((x, result))
    if gradients.wants(weight):
        result = builder.new_like(weight)
        attributes = {**node.attributes, "is_transposed": is_transposed}
        builder.run(OpKind.CONV_WEIGHT_GRAD, (gradient, x), (result,), "convolution_backward", attributes=attributes)
        results.append((weight, result))
    results += _bias(gradients, node, gradient)
    _give_all(gradients, results)


def _give_all(gradients: Gradients, results: Sequence[tuple[int, int]]) -> None:
    for index, result in results:
        gradients.give(index, result)


def _linear(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, weight = node.inputs[:2]
    builder = gradients.builder
    gradient = _first(taken)
    if len(builder.shape(gradient)) > 2:
        gradient = gradients.dense(gradient)
    results = []
    if gradients.wants(x):
        result = builder.new_like(x)
        builder.run(OpKind.MATMUL, (gradient, weight), (result,))
        results.append((x, result))
    if gradients.wants(weight):
        result = builder.new_like(weight)
        rows, columns = builder.as_matrix(gradient), builder.as_matrix(x)
        if rows is None or columns is None:
            builder.run(OpKind.UNKNOWN, (gradient, x), (result,), "linear_backward")
        else:
            builder.run(OpKind.MATMUL, (builder.transposed(rows), columns), (result,))
        results.append((weight, result))
    _give_all(gradients, results + _bias(gradients, node, gradient))


def _matmul(gradients: Gradients, node: Node, taken: Outputs) -> None:
    left, right = node.inputs[:2]
    builder = gradients.builder
    gradient = _first(taken)
    ranks = [len(builder.shape(index)) for index in (left, right, gradient)]
    if min(ranks) < 2 or "contracted" in node.attributes:
        _elementwise_of(gradients, node, gradient, kept=(left, right))
        return
    results = []
    if gradients.wants(left):
        shape = (*builder.shape(gradient)[:-1], builder.shape(left)[-1])
        result = builder.new_tensor(shape, builder.dtype(left))
        builder.run(OpKind.MATMUL, (gradient, builder.transposed(right)), (result,))
        results.append((left, result))
    if gradients.wants(right):
        rows: int | None = left
        columns: int | None = gradient
        if ranks[1] == 2 and ranks[0] > 2:
            rows, columns = builder.as_matrix(left), builder.as_matrix(gradient)
        if rows is None or columns is None:
            _elementwise_of(gradients, node, gradient, kept=(left, right))
            return
        product = builder.shape(columns)
        shape = (*product[:-2], builder.shape(rows)[-1], product[-1])
        result = builder.new_tensor(shape, builder.dtype(right))
        builder.run(OpKind.MATMUL, (builder.transposed(rows), columns), (result,))
        results.append((right, result))
    _give_all(gradients, results + _bias(gradients, node, gradient))


def _bias(gradients: Gradients, node: Node, gradient: int) -> list[tuple[int, int]]:
    """The bias of a contraction gets the sum over everything that it was added to."""
    if len(node.inputs) < 3 or not gradients.wants(node.inputs[2]):
        return []
    bias, builder = node.inputs[2], gradients.builder
    if count_elements(builder.shape(bias)) == count_elements(builder.shape(gradient)):
        return [(bias, gradient)]
    total = builder.new_like(bias)
    builder.run(OpKind.REDUCE, (gradient,), (total,), function="sum")
    return [(bias, total)]


def _attention(gradients: Gradients, node: Node, taken: Outputs) -> None:
    query, key, value = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else -1
    builder = gradients.builder
    results = [builder.new_like(index) for index in (query, key, value)]
    has_mask_gradient = gradients.wants(mask)
    if has_mask_gradient:
        results.append(builder.new_like(mask))
    builder.run(
        OpKind.ATTENTION_GRAD,
        (query, key, value, mask, *node.outputs, _first(taken)),
        results,
        function=node.kind.value,
        attributes=node.attributes,
    )
    for index, result in zip((query, key, value, mask), results, strict=False):
        if index != mask:
            # The kernels write their results head by head within each token.
            builder.permuted.add(result)
        gradients.give(index, result)


def _recurrent(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    wanted = [index for index in dict.fromkeys(node.inputs) if gradients.wants(index)]
    results = [builder.new_like(index) for index in wanted]
    builder.run(
        OpKind.RECURRENT_GRAD,
        (node.inputs[0], *node.inputs[1:], *node.outputs, *(g for g in taken if g is not None)),
        results,
        function=node.kind.value,
        attributes=node.attributes,
    )
    for index, result in zip(wanted, results, strict=True):
        gradients.give(index, result)


# Norms, softmax, pooling


def _norm(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    x, *rest = node.inputs
    affine = [index for index in rest[:2] if gradients.wants(index)]
    scale = rest[:1] if rest and rest[0] >= 0 else []
    gradient = gradients.dense(_first(taken))
    targets = [*([x] if gradients.wants(x) else []), *affine]
    results = [builder.new_like(index) for index in targets]
    builder.run(
        OpKind.NORM_GRAD,
        (gradient, x, *scale, *node.outputs[1:]),
        results,
        function=node.kind.value,
        attributes=node.attributes,
    )
    for index, result in zip(targets, results, strict=True):
        gradients.give(index, result)


def _softmax(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    inputs = (_first(taken), node.outputs[0])
    gradients.give(x, gradients.make(OpKind.SOFTMAX_GRAD, inputs, x, node.kind.value, node.attributes))


def _pool(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    if node.kind is OpKind.GLOBAL_POOL and _is_mean(node):
        _reduce(gradients, node, taken)
        return
    gradient = gradients.dense(_first(taken))
    # Average pooling reads no input in its backward pass, but autograd keeps it for its shape.
    inputs = (gradient, x, *node.outputs[1:])
    gradients.give(x, gradients.make(OpKind.POOL_GRAD, inputs, x, node.kind.value, node.attributes))


def _is_mean(node: Node) -> bool:
    """Adaptive average pooling to one element is a mean in PyTorch."""
    size = node.attributes.get("output_size")
    return "max" not in node.source_op.lower() and (size is None or (isinstance(size, tuple) and set(size) <= {1}))


def _resize(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    gradients.give(x, gradients.make(OpKind.POOL_GRAD, (_first(taken),), x, node.kind.value))


# Element by element


def _activation(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, *others = node.inputs
    is_in_place = gradients.builder.base(x) == gradients.builder.base(node.outputs[0])
    keeps_result = node.kind in _KEEPS_RESULT or (is_in_place and node.kind in _KEEPS_RESULT_IN_PLACE)
    gradient = _first(taken)
    kept = node.outputs[0] if keeps_result else gradients.builder.saved_inputs.get(node.outputs[0], x)
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, (gradient, kept), x, node.kind.value))
    for other in others:
        if gradients.wants(other):
            full = gradients.make(OpKind.ELEMENTWISE_GRAD, (gradient, kept), x, node.kind.value)
            gradients.give(other, full)


def _unary(gradients: Gradients, node: Node, taken: Outputs) -> None:
    function = str(node.attributes.get("function", ""))
    x = node.inputs[0]
    if function in GRADIENT_CHAINS:
        _chain(gradients, node, function, taken)
        return
    if function in _FREE_FUNCTIONS:
        kept: tuple[int, ...] = ()
    else:
        kept = (node.outputs[0],) if function in _RESULT_FUNCTIONS else (x,)
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, (_first(taken), *kept), x, function))


def _chain(gradients: Gradients, node: Node, name: str, taken: Outputs) -> None:
    x = node.inputs[0]
    gradient = _first(taken)
    builder = gradients.builder
    if builder.shape(gradient) != builder.shape(x):
        gradient = _expanded(gradients, gradient, x)
    operands = {"g": gradient, "x": x, "y": node.outputs[0]}
    gradients.give(x, run_chain(builder, name, operands, like=x))


def _clip(gradients: Gradients, node: Node, taken: Outputs) -> None:
    if "clamp" in node.source_op:
        _chain(gradients, node, "clamp", taken)
    else:
        _activation(gradients, node, taken)


def _power(gradients: Gradients, node: Node, taken: Outputs) -> None:
    if len(node.inputs) == 1:
        _chain(gradients, node, "pow", taken)
    else:
        _product(gradients, node, taken)


def _division(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = _first(taken)
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
    gradient = _first(taken)
    for position, index in enumerate(node.inputs):
        if not gradients.wants(index):
            continue
        if node.kind is OpKind.SUB and position == 1:
            negated = gradients.make(OpKind.UNARY, (gradient,), gradient, "neg")
            gradients.give(index, negated)
        else:
            gradients.give(index, gradient)


def _product(gradients: Gradients, node: Node, taken: Outputs) -> None:
    _elementwise_of(gradients, node, _first(taken), kept=node.inputs)


def _elementwise_of(gradients: Gradients, node: Node, gradient: int, *, kept: Sequence[int]) -> None:
    """The gradient of each input from that of the output and the other inputs."""
    given = [index for index in kept if index >= 0]
    for position, index in enumerate(node.inputs):
        if not gradients.wants(index):
            continue
        if node.kind is OpKind.MUL:
            others = [other for place, other in enumerate(node.inputs) if place != position and other >= 0]
        elif node.kind is OpKind.DIV and position == 0:
            others = given[1:]
        else:
            others = given
        result = gradients.builder.new_like(gradient, dtype=gradients.builder.dtype(gradient))
        gradients.builder.run(
            OpKind.ELEMENTWISE_GRAD, (gradient, *dict.fromkeys(others)), (result,), function=_function(node)
        )
        gradients.give(index, result)


def _binary(gradients: Gradients, node: Node, taken: Outputs) -> None:
    kept: Sequence[int] = node.inputs
    if node.attributes.get("function") in _MASK_FUNCTIONS:
        kept = [index for index in kept if index >= 0 and not gradients.builder.dtype(index).is_floating]
    _elementwise_of(gradients, node, _first(taken), kept=kept)


def _dropout(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    inputs = (_first(taken), *node.outputs[1:])
    gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, inputs, x, node.kind.value))


def _reduce(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    builder = gradients.builder
    function = _function(node)
    gradient = _first(taken)
    if function == "sum":
        gradients.give(x, _expanded(gradients, gradient, x))
        return
    if function == "norm":
        _chain(gradients, node, "norm", taken)
        return
    kept: Sequence[int] = (x,) if function in _REDUCE_INPUT_FUNCTIONS else ()
    if function in _REDUCE_BOTH_FUNCTIONS:
        kept = (x, node.outputs[0])
    if function in ("max", "min") and len(node.outputs) > 1:
        kept = node.outputs[1:2]
    result = builder.new_like(x)
    builder.run(OpKind.ELEMENTWISE_GRAD, (_expanded(gradients, gradient, x), *kept), (result,), function=function)
    gradients.give(x, result)


def _expanded(gradients: Gradients, gradient: int, tensor: int) -> int:
    return gradients.builder.view(gradient, gradients.builder.shape(tensor), "expand")


def _cast(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradients.give(node.inputs[0], _first(taken))


def _cumulative(gradients: Gradients, node: Node, taken: Outputs) -> None:
    _chain(gradients, node, "cumsum", taken)


def _same_again(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """Operators whose gradient is an operator of the same kind on the gradient."""
    x = node.inputs[0]
    result = gradients.builder.new_like(x)
    gradients.builder.run(node.kind, (_first(taken),), (result,), node.source_op, attributes=node.attributes)
    gradients.give(x, result)


# Moving elements


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
    gradient = _first(taken)
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
    builder = gradients.builder
    x = node.inputs[0]
    gradient = _first(taken)
    function = _function(node)
    if count_elements(builder.shape(x)) != count_elements(builder.shape(gradient)):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))
    elif function in ("clone", "copy", "contiguous", "_reshape_copy"):
        shape = builder.shape(x)
        gradients.give(x, gradient if builder.shape(gradient) == shape else builder.view(gradient, shape))
    else:
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, function))


def _concat(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = _first(taken)
    for index in node.inputs:
        if gradients.wants(index):
            gradients.give(index, gradients.builder.view(gradient, gradients.builder.shape(index), "slice"))


def _pad(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    # Padding by what the image holds keeps the image for its shape.
    kept = () if _function(node) in _CONSTANT_PADS else (x,)
    gradients.give(x, gradients.make(OpKind.COPY, (_first(taken), *kept), x, "unpad"))


def _gather(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, *indices = node.inputs
    inputs = (_first(taken), *(index for index in indices if index >= 0))
    if _function(node) == "nll_loss":
        gradients.give(x, gradients.make(OpKind.ELEMENTWISE_GRAD, inputs, x, "nll_loss"))
        return
    gradients.give(x, gradients.make(OpKind.SCATTER, inputs, x, "add"))


def _scatter(gradients: Gradients, node: Node, taken: Outputs) -> None:
    gradient = _first(taken)
    x, *rest = node.inputs
    indices = [index for index in rest if index >= 0 and not gradients.wants(index)]
    if gradients.wants(x):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, "clone"))
    for index in rest:
        if gradients.wants(index):
            gradients.give(index, gradients.make(OpKind.GATHER, (gradient, *indices), index, "gather"))


def _unknown(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """An operator without a rule: its gradient reads all that it read, and writes what is asked for."""
    builder = gradients.builder
    wanted = [index for index in dict.fromkeys(node.inputs) if gradients.wants(index)]
    results = [builder.new_like(index) for index in wanted]
    present = [gradient for gradient in taken if gradient is not None]
    inputs = (*present, *(index for index in node.inputs if index >= 0))
    builder.run(node.kind, inputs, results, node.source_op, attributes=node.attributes)
    for index, result in zip(wanted, results, strict=True):
        gradients.give(index, result)


def _function(node: Node) -> str:
    function: Attribute = node.attributes.get("function", "")
    return str(function) if function else node.kind.value


_Rule = Callable[[Gradients, Node, Outputs], None]

_RULES: dict[OpKind, _Rule] = {
    OpKind.CONV: _convolution,
    OpKind.CONV_TRANSPOSE: _convolution,
    OpKind.LINEAR: _linear,
    OpKind.MATMUL: _matmul,
    OpKind.ATTENTION: _attention,
    **dict.fromkeys(RECURRENT_KINDS, _recurrent),
    **dict.fromkeys(NORM_KINDS, _norm),
    OpKind.SOFTMAX: _softmax,
    OpKind.LOG_SOFTMAX: _softmax,
    OpKind.MAX_POOL: _pool,
    OpKind.AVG_POOL: _pool,
    OpKind.GLOBAL_POOL: _pool,
    OpKind.RESIZE: _resize,
    OpKind.EMBEDDING: _gather,
    OpKind.GATHER: _gather,
    OpKind.SCATTER: _scatter,
    OpKind.REDUCE: _reduce,
    OpKind.ADD: _sum,
    OpKind.SUB: _sum,
    OpKind.MUL: _product,
    OpKind.DIV: _division,
    OpKind.POW: _power,
    OpKind.UNARY: _unary,
    OpKind.BINARY: _binary,
    OpKind.CAST: _cast,
    OpKind.COPY: _copy,
    OpKind.CONCAT: _concat,
    OpKind.PAD: _pad,
    OpKind.VIEW: _view,
    OpKind.CUMULATIVE: _cumulative,
    OpKind.FFT: _same_again,
    **dict.fromkeys(
        (
            OpKind.RELU,
            OpKind.LEAKY_RELU,
            OpKind.PRELU,
            OpKind.ELU,
            OpKind.GELU,
            OpKind.SILU,
            OpKind.MISH,
            OpKind.SIGMOID,
            OpKind.TANH,
            OpKind.SOFTPLUS,
            OpKind.HARD_SWISH,
            OpKind.HARD_SIGMOID,
        ),
        _activation,
    ),
    OpKind.CLIP: _clip,
}
