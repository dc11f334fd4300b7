"""Shapes of common operators and of the compositions that stay one node.

PyTorch's own shape functions know them all; these are quicker, and, unlike those, import no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["SHAPE_RULES", "elementwise_result", "empty_like"]


def empty_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor in the same layout, as ``torch.empty_like`` makes it, without that one's detour through Python."""
    return _laid_out_like([tensor], tensor.shape, dtype=dtype or tensor.dtype)


def _laid_out_like(operands: Sequence[torch.Tensor], shape: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor whose dimensions lie in memory in the order that they have in the operands.

    The first operand decides, the next ones where it leaves a choice, as in PyTorch's element-wise kernels.
    """
    if all(item.is_contiguous() and item.shape == shape for item in operands):
        return torch.empty(shape, dtype=dtype, device="meta")
    rank = len(shape)
    strides = []
    for item in operands:
        missing = rank - item.dim()
        own = zip(item.shape, item.stride(), shape[missing:], strict=True)
        strides.append([0] * missing + [0 if size == 1 != wanted else stride for size, stride, wanted in own])
    order = list(range(rank))[::-1]  # innermost first
    for position in range(1, rank):
        current = position
        for other in range(position - 1, -1, -1):
            comparison = _compare(order[other], order[current], strides, shape)
            if comparison > 0:
                order[other], order[current] = order[current], order[other]
                current = other
            elif comparison < 0:
                break
    result = [0] * rank
    step = 1
    for axis in order:
        result[axis] = step
        step *= max(shape[axis], 1)
    return torch.empty_strided(tuple(shape), result, dtype=dtype, device="meta")


def _compare(inner: int, outer: int, strides: Sequence[Sequence[int]], shape: Sequence[int]) -> int:
    """Whether two dimensions lie the other way round: 1 yes, -1 no, 0 undecided."""
    for stride in strides:
        if stride[inner] == 0 or stride[outer] == 0:
            continue
        if stride[inner] != stride[outer]:
            return 1 if stride[inner] > stride[outer] else -1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def _new(
    like: torch.Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None, is_channels_last: bool = False
) -> torch.Tensor:
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    return torch.empty(tuple(size), dtype=dtype or like.dtype, device="meta", memory_format=memory_format)


def _linear(arguments: Mapping[str, Any]) -> torch.Tensor:
    x, weight = arguments["input"], arguments["weight"]
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"a linear layer takes {weight.shape[-1]} features in the last dimension and got {tuple(x.shape)}"
        )
    size = tuple(x.shape[:-1]) + ((weight.shape[0],) if weight.dim() > 1 else ())
    return _new(x, size, dtype=torch.promote_types(x.dtype, weight.dtype))


def _like_input(arguments: Mapping[str, Any]) -> torch.Tensor:
    x = arguments["input"]
    running_mean = arguments.get("running_mean")
    if running_mean is not None and x.dim() > 1 and running_mean.shape[0] != x.shape[1]:
        raise ValueError(f"a norm over {running_mean.shape[0]} channels got {tuple(x.shape)}")
    return empty_like(x)


def _row_by_row(arguments: Mapping[str, Any]) -> torch.Tensor:
    """Softmax writes row by row, in whatever order it reads."""
    x = arguments["self"]
    return _new(x, x.shape)


def _dropout(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x = arguments["input"]
    return empty_like(x), empty_like(x, dtype=torch.bool)


def _log_sigmoid(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The buffer that the CPU fills for the gradient is empty on a GPU."""
    x = arguments["self"]
    return empty_like(x), _new(x, (0,))


def _attention(arguments: Mapping[str, Any]) -> torch.Tensor:
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"attention got query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}"
        )
    if query.dim() != 4:
        return _new(query, (*query.shape[:-1], value.shape[-1]))
    # Fused attention on a GPU writes [B, L, H, E], so that joining the heads afterwards is a free view.
    batch, heads, length = query.shape[:3]
    return _new(query, (batch, length, heads, value.shape[-1])).transpose(1, 2)


def _adaptive_pool(arguments: Mapping[str, Any]) -> torch.Tensor:
    x = arguments["self"]
    size = arguments["output_size"]
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return _new(x, (*x.shape[: -len(sizes)], *sizes))


def _recurrent(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    x = arguments["input"]
    states = arguments["hx"]
    states = (states,) if isinstance(states, torch.Tensor) else tuple(states)
    directions = 2 if arguments["bidirectional"] else 1
    weight = arguments["params"][0]
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(f"a recurrent layer takes {weight.shape[-1]} features and got {tuple(x.shape)}")
    output = _new(x, (*x.shape[:-1], directions * states[0].shape[-1]))
    return (output, *(empty_like(state) for state in states))


def _lstm_cell(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Hidden state, cell state, and the gates for the backward pass."""
    cell = arguments["cx"]
    return empty_like(cell), empty_like(cell), empty_like(arguments["input_gates"])


def _gru_cell(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Hidden state, and five numbers for each of its own for the backward pass."""
    hidden = arguments["hx"]
    return empty_like(hidden), _new(hidden, (hidden.shape[0], 5 * hidden.shape[1]))


def _group_norm(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    x = arguments["input"]
    statistics = (arguments["N"], arguments["group"])
    return empty_like(x), _new(x, statistics), _new(x, statistics)


def _ctc_loss(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss for each sample, and the sums over paths up to each step: one for each label and each blank around it.

    Labels are taken to be as many as fit into the targets that are given, those of all samples behind each other too.
    """
    scores, targets = arguments["log_probs"], arguments["targets"]
    steps, samples = scores.shape[:2]
    labels = targets.shape[1] if targets.dim() > 1 else -(-targets.shape[0] // max(samples, 1))
    return _new(scores, (samples,)), _new(scores, (samples, steps, 2 * labels + 1))


def _reflections(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A QR decomposition as LAPACK packs it, and the scale of each reflection."""
    x = arguments["self"]
    return empty_like(x), _new(x, (*x.shape[:-2], min(x.shape[-2:])))


def _least_squares(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Solutions and residuals; ranks and singular values are left out by the one driver that GPUs have."""
    x, right = arguments["self"], arguments["b"]
    rows, columns = x.shape[-2:]
    is_vector = right.dim() == x.dim() - 1 and right.shape == x.shape[:-1]
    sides = () if is_vector else (right.shape[-1],)
    batch = _broadcast(x.shape[:-2], right.shape[: right.dim() - 1 - len(sides)])
    residuals = (*batch, *(sides or (1,))) if rows > columns else (0,)
    rest = _new(x, (0,), dtype=torch.int64), _new(x, (0,))
    return _new(x, (*batch, columns, *sides)), _new(x, residuals), *rest


def _grouped_product(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    a, b = arguments["self"], arguments["mat2"]
    if a.dim() == 2 and b.dim() == 3 and arguments.get("offs") is not None:
        return _new(a, (a.shape[0], b.shape[2]))
    return None


def _grouped_product_of_transformers(arguments: Mapping[str, Any]) -> torch.Tensor:
    rows, weight = arguments["input"], arguments["weight"]
    return _new(rows, (rows.shape[0], weight.shape[2]))


def _product_with_packed_nibbles(arguments: Mapping[str, Any]) -> torch.Tensor:
    x, weight = arguments["self"], arguments["mat2"]
    # Where the weight has four dimensions, on a GPU, the first counts blocks of eight columns.
    return _new(x, (x.shape[0], weight.shape[0] * (8 if weight.dim() > 2 else 1)))


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def _convolution(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    x, weight = arguments["input"], arguments["weight"]
    rank = weight.dim() - 2
    if arguments["transposed"] or x.dim() != weight.dim() or x.dtype != weight.dtype:
        return None
    if x.shape[1] != weight.shape[1] * arguments["groups"]:
        raise ValueError(
            f"a convolution takes {weight.shape[1] * arguments['groups']} channels and got {tuple(x.shape)}"
        )
    stride, padding, dilation = (
        tuple(arguments[name]) * (rank if len(arguments[name]) == 1 else 1)
        for name in ("stride", "padding", "dilation")
    )
    sizes = [
        (extent + 2 * pad - step * (kernel - 1) - 1) // hop + 1
        for extent, kernel, hop, pad, step in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    if min(sizes) <= 0:
        raise ValueError(f"a {tuple(weight.shape[2:])} convolution is larger than its input {tuple(x.shape)}")
    is_channels_last = _is_channels_last(x) or _is_channels_last(weight)
    return _new(x, (x.shape[0], weight.shape[0], *sizes), is_channels_last=is_channels_last)


def _pool(arguments: Mapping[str, Any], *, rank: int) -> torch.Tensor | None:
    x = arguments["self"]
    if x.dim() not in {rank + 1, rank + 2}:
        return None
    kernel = _spread(arguments["kernel_size"], rank)
    stride = _spread(arguments["stride"], rank) or kernel
    padding, dilation = _spread(arguments["padding"], rank), _spread(arguments.get("dilation", 1), rank)
    sizes = []
    for extent, window, hop, pad, step in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        room = extent + 2 * pad - step * (window - 1) - 1
        if arguments["ceil_mode"]:
            size = -(-room // hop) + 1
            # The last window must begin inside the input or its left padding.
            size -= (size - 1) * hop >= extent + pad
        else:
            size = room // hop + 1
        sizes.append(size)
    if min(sizes) <= 0:
        raise ValueError(f"a pooling over {kernel} is larger than its input {tuple(x.shape)}")
    return _new(x, (*x.shape[:-rank], *sizes), is_channels_last=_is_channels_last(x))


def _spread(value: Any, rank: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def _max_pool2d(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...] | None:
    result = _pool(arguments, rank=2)
    return None if result is None else (result, empty_like(result, dtype=torch.int64))


def _avg_pool2d(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    return _pool(arguments, rank=2)


def _cat(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    # PyTorch leaves out empty tensors of one dimension, with which caches begin.
    tensors = [item for item in arguments["tensors"] if item.shape != (0,)] or arguments["tensors"]
    first = tensors[0]
    rank = first.dim()
    if rank == 0 or any(item.dim() != rank or item.dtype != first.dtype for item in tensors):
        return None
    axis = arguments["dim"] % rank
    size = list(first.shape)
    size[axis] = sum(item.shape[axis] for item in tensors)
    for item in tensors:
        if any(item.shape[i] != size[i] for i in range(rank) if i != axis):
            raise ValueError(f"a concatenation along dimension {axis} got {[tuple(item.shape) for item in tensors]}")
    return _new(first, size, is_channels_last=all(_is_channels_last(item) for item in tensors))


def _layer_norm(arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...] | None:
    x, normalized = arguments["input"], tuple(arguments["normalized_shape"])
    if tuple(x.shape[-len(normalized) :]) != normalized:
        raise ValueError(f"a layer norm over {normalized} got {tuple(x.shape)}")
    statistics = (*x.shape[: -len(normalized)], *(1 for _ in normalized))
    dtype = torch.float32 if x.dtype in {torch.float16, torch.bfloat16} else x.dtype
    return _new(x, x.shape), _new(x, statistics, dtype=dtype), _new(x, statistics, dtype=dtype)


def _embedding(arguments: Mapping[str, Any]) -> torch.Tensor:
    weight = arguments["weight"]
    return _new(weight, (*arguments["indices"].shape, *weight.shape[1:]))


def _addmm(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    return _product(arguments["mat1"], arguments["mat2"])


def _mm(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    return _product(arguments["self"], arguments["mat2"])


def _baddbmm(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    return _product(arguments["batch1"], arguments["batch2"])


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return None
    return _new(a, (*a.shape[:-1], b.shape[-1]))


def _roll(arguments: Mapping[str, Any]) -> torch.Tensor:
    return _new(arguments["self"], arguments["self"].shape)


def _reduction(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    x, axes = arguments["self"], arguments.get("dim")
    if not x.dtype.is_floating_point or arguments.get("dtype") not in {None, x.dtype}:
        return None
    rank = x.dim()
    if axes is None or axes == []:
        axes = range(rank)
    reduced = {axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)}
    keep = arguments.get("keepdim", False)
    return _new(x, [1 if i in reduced else n for i, n in enumerate(x.shape) if keep or i not in reduced])


_ShapeRule = Callable[[Mapping[str, Any]], torch.Tensor | tuple[torch.Tensor, ...] | None]
_TO_BOOL = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "isnan",
        "isinf", "isneginf", "isposinf", "isfinite",
    }
)  # fmt: skip
_ELEMENTWISE = frozenset(
    {
        "relu", "leaky_relu", "elu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "hardswish", "hardsigmoid",
        "hardtanh", "clamp", "clamp_min", "clamp_max", "add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum",
        "exp", "log", "sqrt", "rsqrt", "square", "reciprocal", "abs", "neg", "sin", "cos", "erf", "floor", "ceil",
        "round", "masked_fill", "where", "lerp", "addcmul", "addcdiv", "expm1", "log1p",
        "sign", "bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__", "floor_divide",
        "remainder", "copy", "fill", "zero", "clone",
        *_TO_BOOL,
    }
)  # fmt: skip


def _broadcast(a: Sequence[int], b: Sequence[int]) -> torch.Size:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    padded = (*(1 for _ in range(len(longer) - len(shorter))), *shorter)
    if any(x != y and 1 not in {x, y} for x, y in zip(longer, padded, strict=True)):
        raise ValueError(f"shapes {tuple(a)} and {tuple(b)} do not go together")
    return torch.Size(y if x == 1 else x for x, y in zip(longer, padded, strict=True))


def elementwise_result(name: str, arguments: Mapping[str, Any], *, is_in_place: bool) -> torch.Tensor | None:
    """Result of an operator that works element by element, or None where PyTorch has to be asked.

    Args:
        name: The operator without overload and in-place underscore.
        arguments: Its arguments by name.
        is_in_place: Whether it writes to its first argument.
    """
    if name not in _ELEMENTWISE:
        return None
    first = arguments["self"]
    if not isinstance(first, torch.Tensor) or arguments.get("memory_format") not in {None, torch.preserve_format}:
        return None
    dtype = first.dtype
    if name == "abs" and dtype.is_complex:  # the modulus is real
        return None
    shape = first.shape
    for key, operand in arguments.items():
        if key == "self" or not isinstance(operand, (torch.Tensor, int, float, complex)):
            continue
        if isinstance(operand, torch.Tensor):
            if name not in _TO_BOOL and operand.dtype != dtype and key not in {"mask", "src", "condition"}:
                return None
            if operand.shape != shape:
                shape = _broadcast(shape, operand.shape)
        elif isinstance(operand, complex) or (isinstance(operand, float) and not dtype.is_floating_point):
            return None
    if is_in_place:
        return first if shape == first.shape else None
    if name in _TO_BOOL:
        dtype = torch.bool
    elif not dtype.is_floating_point and (name not in _INTEGER_SAFE or dtype is torch.bool):
        return None
    operands = [item for item in arguments.values() if isinstance(item, torch.Tensor)]
    return _laid_out_like(operands, shape, dtype=dtype)


_INTEGER_SAFE = frozenset(
    {
        "add",
        "sub",
        "rsub",
        "mul",
        "clone",
        "maximum",
        "minimum",
        "abs",
        "neg",
        "bitwise_and",
        "floor_divide",
        "remainder",
    }
)

SHAPE_RULES: Mapping[str, _ShapeRule] = {
    "linear": _linear,
    "batch_norm": _like_input,
    "instance_norm": _like_input,
    "rms_norm": _like_input,
    "native_dropout": _dropout,
    "log_sigmoid_forward": _log_sigmoid,
    "_softmax": _row_by_row,
    "_log_softmax": _row_by_row,
    "convolution": _convolution,
    "_convolution": _convolution,
    "max_pool2d_with_indices": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "cat": _cat,
    "native_layer_norm": _layer_norm,
    "embedding": _embedding,
    "addmm": _addmm,
    "mm": _mm,
    "bmm": _mm,
    "baddbmm": _baddbmm,
    "roll": _roll,
    **dict.fromkeys(("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm"), _reduction),
    "_grouped_mm": _grouped_product,
    "grouped_mm_fallback": _grouped_product_of_transformers,
    **dict.fromkeys(("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"), _product_with_packed_nibbles),
    "native_group_norm": _group_norm,
    "scaled_dot_product_attention": _attention,
    "adaptive_avg_pool1d": _adaptive_pool,
    "adaptive_avg_pool2d": _adaptive_pool,
    "adaptive_avg_pool3d": _adaptive_pool,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_gru_cell": _gru_cell,
    "_ctc_loss": _ctc_loss,
    "geqrf": _reflections,
    "linalg_lstsq": _least_squares,
    "lstm": _recurrent,
    "gru": _recurrent,
    "rnn_tanh": _recurrent,
    "rnn_relu": _recurrent,
}
