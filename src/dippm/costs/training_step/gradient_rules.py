"""What each operator's backward pass runs and reads, in eager PyTorch on CUDA (``derivatives.yaml``, PyTorch 2.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dippm.costs.contraction import PROJECTION
from dippm.costs.training_step.backward import RESHAPE, Gradients, Outputs, Rule, first_of
from dippm.costs.training_step.dequantised_products import read_weight
from dippm.costs.training_step.elementwise_gradients import ELEMENTWISE_RULES, gradients_of_inputs, reduce_gradient
from dippm.costs.training_step.moving_gradients import MOVING_RULES
from dippm.costs.training_step.step_builder import StepBuilder, count_elements
from dippm.graph import NORM_KINDS, RECURRENT_KINDS, Attribute, Node, OpKind, TensorRole

__all__ = ["run_backward"]

_MOVING_ROLES = frozenset({TensorRole.INPUT, TensorRole.ACTIVATION})


def run_backward(gradients: Gradients, node: Node) -> None:
    """Append what runs for one node, and hand its inputs their gradients.

    Args:
        gradients: The gradients so far; those of all consumers of the node's outputs have arrived.
        node: A node of the forward pass.
    """
    if not gradients.goes_through(node):
        return
    gradients.share(node)
    taken = gradients.take(node.outputs)
    if all(gradient is None for gradient in taken):
        return
    _RULES.get(node.kind, _unknown)(gradients, node, taken)


# Contractions


def _convolution(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, weight = node.inputs[:2]
    builder = gradients.builder
    gradient = gradients.dense(first_of(taken))
    is_transposed = node.kind is OpKind.CONV_TRANSPOSE
    # One operator for autograd: all results are there before any is handed on.
    results = []
    if gradients.wants(x):
        kind = OpKind.CONV if is_transposed else OpKind.CONV_TRANSPOSE
        result = builder.new_like(x)
        builder.run(kind, (gradient, weight), (result,), "convolution_backward", attributes=node.attributes)
        results.append((x, result))
    elif builder.tensors[weight].role in _MOVING_ROLES:
        # Autograd keeps a filter that was computed also where the image needs no gradient.
        builder.view(weight, builder.shape(weight))
    if gradients.wants(weight):
        result = builder.new_like(weight)
        attributes = {**node.attributes, "is_transposed": is_transposed}
        builder.run(OpKind.CONV_WEIGHT_GRAD, (gradient, x), (result,), "convolution_backward", attributes=attributes)
        results.append((weight, result))
    else:
        # Autograd keeps the image of a filter that is not trained as well.
        builder.view(x, builder.shape(x))
    results += _bias(gradients, node, gradient)
    _give_all(gradients, results)


def _give_all(gradients: Gradients, results: Sequence[tuple[int, int]]) -> None:
    for index, result in results:
        gradients.give(index, result)


def _linear(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x, weight = node.inputs[:2]
    builder = gradients.builder
    gradient = first_of(taken)
    if len(builder.shape(gradient)) > 2:
        gradient = gradients.dense(gradient, RESHAPE)
    results = []
    if gradients.wants(x):
        unpacked = read_weight(builder, node)
        result = builder.new_like(x)
        builder.run(OpKind.MATMUL, (gradient, unpacked), (result,))
        _note_folded(gradients, result)
        results.append((x, result))
    if gradients.wants(weight):
        result = builder.new_like(weight)
        rows, columns = builder.as_matrix(gradient), builder.as_matrix(x)
        if rows is None or columns is None:
            builder.run(OpKind.UNKNOWN, (gradient, x), (result,), "linear_backward")
        else:
            builder.run(OpKind.MATMUL, (builder.transposed(rows), columns), (result,))
        # The weight was turned for the product, and its gradient is turned back.
        builder.views.add(result)
        results.append((weight, result))
    _give_all(gradients, results + _bias(gradients, node, gradient))


def _note_folded(gradients: Gradients, result: int) -> None:
    """The gradient of more than a matrix is a view of what the product wrote, which knows no more dimensions."""
    if len(gradients.builder.shape(result)) > 2:
        gradients.builder.views.add(result)


def _matmul(gradients: Gradients, node: Node, taken: Outputs) -> None:
    left, right = node.inputs[:2]
    builder = gradients.builder
    gradient = first_of(taken)
    ranks = [len(builder.shape(index)) for index in (left, right, gradient)]
    if min(ranks) < 2 or "contracted" in node.attributes:
        gradients_of_inputs(gradients, node, gradient, kept=(left, right))
        return
    results = []
    if gradients.wants(left):
        shape = (*builder.shape(gradient)[:-1], builder.shape(left)[-1])
        unpacked = read_weight(builder, node)
        result = builder.new_tensor(shape, builder.dtype(left))
        builder.run(OpKind.MATMUL, (gradient, builder.transposed(unpacked)), (result,))
        _note_folded(gradients, result)
        results.append((left, result))
    if gradients.wants(right):
        rows: int | None = left
        columns: int | None = gradient
        if ranks[1] == 2 and ranks[0] > 2:
            rows, columns = builder.as_matrix(left), builder.as_matrix(gradient)
        if rows is None or columns is None:
            gradients_of_inputs(gradients, node, gradient, kept=(left, right))
            return
        product = builder.shape(columns)
        shape = (*product[:-2], builder.shape(rows)[-1], product[-1])
        result = builder.new_tensor(shape, builder.dtype(right))
        builder.run(OpKind.MATMUL, (builder.transposed(rows), columns), (result,))
        _note_folded(gradients, result)
        results.append((right, result))
    _give_all(gradients, results + _bias(gradients, node, gradient))


def _bias(gradients: Gradients, node: Node, gradient: int) -> list[tuple[int, int]]:
    """The bias of a contraction gets the sum over everything that it was added to."""
    if len(node.inputs) < 3 or not gradients.wants(node.inputs[2]):
        return []
    return [(node.inputs[2], _sum_repeated(gradients.builder, gradient, node.inputs[2]))]


def _attention(gradients: Gradients, node: Node, taken: Outputs) -> None:
    query, key, value = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else -1
    builder = gradients.builder
    results = [builder.new_like(index) for index in (query, key, value)]
    has_mask_gradient = gradients.wants(mask)
    if has_mask_gradient:
        # One for each score, whatever the mask was repeated for.
        scores = (*builder.shape(query)[:-1], builder.shape(key)[-2])
        results.append(builder.new_tensor(scores, builder.dtype(mask)))
    builder.run(
        OpKind.ATTENTION_GRAD,
        (query, key, value, mask, *node.outputs, first_of(taken)),
        results,
        function=node.kind.value,
        attributes=node.attributes,
    )
    for index, result in zip((query, key, value, mask), results, strict=False):
        if index != mask:
            # The kernels write their results head by head within each token.
            builder.permuted.add(result)
        gradients.give(index, _sum_repeated(builder, result, index))


def _sum_repeated(builder: StepBuilder, gradient: int, of: int) -> int:
    """The gradient of a tensor that was repeated to the shape of ``gradient`` before it was read."""
    if count_elements(builder.shape(gradient)) == count_elements(builder.shape(of)):
        return gradient
    total = builder.new_like(of)
    builder.run(OpKind.REDUCE, (gradient,), (total,), function="sum")
    return total


def _recurrent(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    # cuDNN's pass computes the gradients of its input and states whether they are wanted or not.
    wanted = [
        index
        for index in dict.fromkeys(node.inputs)
        if gradients.wants(index) or (index >= 0 and builder.tensors[index].role in _MOVING_ROLES)
    ]
    results = [builder.new_like(index) for index in wanted]
    builder.run(
        OpKind.RECURRENT_GRAD,
        (node.inputs[0], *node.inputs[1:], *node.outputs, *(g for g in taken if g is not None)),
        results,
        function=node.kind.value,
        attributes=_with_projection(builder, node),
    )
    for index, result in zip(wanted, results, strict=True):
        gradients.give(index, result)


def _with_projection(builder: StepBuilder, node: Node) -> Mapping[str, Attribute]:
    """The attributes of a recurrent layer, with the width of what it hands on where that is not its state's."""
    shape, hidden = builder.shape(node.outputs[0]), node.attributes.get("hidden_size")
    directions = node.attributes.get("num_directions", 1)
    if node.kind is not OpKind.LSTM or not (isinstance(hidden, int) and isinstance(directions, int)):
        return node.attributes
    width = shape[-1].fixed // (1 if len(shape) >= 4 else max(directions, 1))
    return {**node.attributes, PROJECTION: width} if 1 <= width < hidden else node.attributes


# Norms, softmax, pooling


def _norm(gradients: Gradients, node: Node, taken: Outputs) -> None:
    builder = gradients.builder
    x, *rest = node.inputs
    affine = [index for index in rest[:2] if gradients.wants(index)]
    scale = rest[:1] if rest and rest[0] >= 0 else []
    gradient = gradients.dense(first_of(taken))
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
    inputs = (first_of(taken), node.outputs[0])
    gradients.give(x, gradients.make(OpKind.SOFTMAX_GRAD, inputs, x, node.kind.value, node.attributes))


def _pool(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    if node.kind is OpKind.GLOBAL_POOL and _is_mean(node):
        reduce_gradient(gradients, node, taken)
        return
    gradient = gradients.dense(first_of(taken))
    # Average pooling reads no input in its backward pass, but autograd keeps it for its shape.
    inputs = (gradient, x, *node.outputs[1:])
    gradients.give(x, gradients.make(OpKind.POOL_GRAD, inputs, x, node.kind.value, node.attributes))


def _is_mean(node: Node) -> bool:
    """Adaptive average pooling to one element is a mean in PyTorch."""
    size = node.attributes.get("output_size")
    return "max" not in node.source_op.lower() and (size is None or (isinstance(size, tuple) and set(size) <= {1}))


def _resize(gradients: Gradients, node: Node, taken: Outputs) -> None:
    x = node.inputs[0]
    gradients.give(x, gradients.make(OpKind.POOL_GRAD, (first_of(taken),), x, node.kind.value))


def _unknown(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """An operator without a rule: its gradient reads all that it read, and what it wrote beside its result."""
    builder = gradients.builder
    wanted = [index for index in dict.fromkeys(node.inputs) if gradients.wants(index)]
    results = [builder.new_like(index) for index in wanted]
    present = [gradient for gradient in taken if gradient is not None]
    inputs = (*present, *(index for index in node.inputs if index >= 0), *node.outputs[1:])
    builder.run(node.kind, inputs, results, node.source_op, attributes=node.attributes)
    for index, result in zip(wanted, results, strict=True):
        gradients.give(index, result)


_RULES: Mapping[OpKind, Rule] = {
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
    **ELEMENTWISE_RULES,
    **MOVING_RULES,
}
