"""Convolutions, plain, transposed, fused and quantised."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, numel
from dippm.graph import Attribute, DType, OpKind

__all__ = ["ACTIVATIONS", "Window", "apply_activation", "convolve", "convolve_last", "pad_if_uneven", "read_window"]

ACTIVATIONS = {
    "Relu": OpKind.RELU, "Sigmoid": OpKind.SIGMOID, "Tanh": OpKind.TANH, "Clip": OpKind.CLIP, "Gelu": OpKind.GELU,
    "LeakyRelu": OpKind.LEAKY_RELU, "HardSigmoid": OpKind.HARD_SIGMOID, "HardSwish": OpKind.HARD_SWISH,
    "Elu": OpKind.ELU, "Softplus": OpKind.SOFTPLUS, "Silu": OpKind.SILU, "silu": OpKind.SILU,
}  # fmt: skip
_LARGEST_WINDOW = 2**31


class Window:
    """A sliding window: kernel, stride, dilation, padding before and after each axis."""

    __slots__ = ("after", "before", "dilation", "kernel", "stride")

    def __init__(
        self,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        before: tuple[int, ...],
        after: tuple[int, ...],
    ) -> None:
        self.kernel = kernel
        self.stride = stride
        self.dilation = dilation
        self.before = before
        self.after = after

    @property
    def is_even(self) -> bool:
        """Whether both sides are padded alike, the only padding that PyTorch's own operators know."""
        return self.before == self.after

    def output(self, sizes: Sequence[int], *, is_ceil: bool = False) -> tuple[int, ...]:
        """Spatial size of the output."""
        result = []
        for axis, size in enumerate(sizes):
            extent = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            padded = size + self.before[axis] + self.after[axis]
            steps = padded - extent
            if steps < 0:
                raise ShapeError(f"a window of {extent} does not fit a padded size of {padded}")
            count = steps // self.stride[axis] + 1
            if is_ceil and steps % self.stride[axis]:
                # The last window must start inside the input or its left padding.
                count += count * self.stride[axis] < size + self.before[axis]
            result.append(count)
        return tuple(result)

    def attributes(self) -> dict[str, Attribute]:
        """As the attributes of a node; the padding is the one before each axis."""
        return {
            "kernel": self.kernel,
            "stride": self.stride,
            "dilation": self.dilation,
            "padding": self.before,
        }


def read_window(call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a convolution or pooling, with automatic padding worked out."""
    rank = len(sizes)
    kernel = tuple(kernel)
    stride = tuple(call.ints_attribute("strides") or [1] * rank)
    dilation = tuple(call.ints_attribute("dilations") or [1] * rank)
    pads = call.ints_attribute("pads") or [0] * (2 * rank)
    if not (len(kernel) == len(stride) == len(dilation) == rank and len(pads) == 2 * rank):
        raise ShapeError(f"its kernel, strides, dilations or pads do not have {rank} spatial dimensions")
    if any(not 0 < value < _LARGEST_WINDOW for value in (*kernel, *stride, *dilation)):
        raise ShapeError("its kernel, strides or dilations are not positive")
    if any(abs(value) >= _LARGEST_WINDOW for value in pads):
        raise ShapeError("its pads are out of range")
    before, after = tuple(pads[:rank]), tuple(pads[rank:])
    mode = call.text_attribute("auto_pad", "NOTSET")
    if mode in {"SAME_UPPER", "SAME_LOWER"}:
        small, large = [], []
        for axis, size in enumerate(sizes):
            extent = dilation[axis] * (kernel[axis] - 1) + 1
            total = max((-(-size // stride[axis]) - 1) * stride[axis] + extent - size, 0)
            small.append(total // 2)
            large.append(total - total // 2)
        before, after = tuple(small), tuple(large)
        if mode == "SAME_LOWER":
            before, after = after, before
    elif mode == "VALID":
        before = after = (0,) * rank
    return Window(kernel, stride, dilation, before, after)


def pad_if_uneven(call: Call, x: Value, window: Window) -> Value:
    """Pad in an operator of its own where the window's sides differ, as PyTorch code has to."""
    if window.is_even:
        return x
    spatial = tuple(
        size + before + after for size, before, after in zip(x.shape[2:], window.before, window.after, strict=True)
    )
    padded = call.emit_many(OpKind.PAD, [x], [((*x.shape[:2], *spatial), x.dtype)], source_op="Pad")[0]
    window.before = window.after = (0,) * len(window.kernel)
    return padded


def apply_activation(call: Call, x: Value, name: str) -> Value:
    """The activation that a fused operator ends with."""
    if not name:
        return x
    kind = ACTIVATIONS.get(name)
    if kind is None:
        return call.emit(OpKind.UNARY, [x], x.shape, x.dtype, function=name.lower())
    return call.emit(kind, [x], x.shape, x.dtype)


def convolve(call: Call, x: Value, weight: Value, bias: Value | None, dtype: DType) -> Value:
    """A convolution of NCHW tensors."""
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        raise ShapeError("a convolution needs an input and a weight of the same rank, at least 3")
    groups = call.int_attribute("group", 1)
    if groups < 1 or x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(f"{x.shape[1]} channels in {groups} groups do not fit a weight of {list(weight.shape)}")
    window = read_window(call, x.shape[2:], weight.shape[2:])
    spatial = window.output(x.shape[2:])
    x = pad_if_uneven(call, x, window)
    shape = (x.shape[0], weight.shape[0], *spatial)
    return call.emit(OpKind.CONV, [x, weight, bias], shape, dtype, groups=groups, **window.attributes())


def convolve_last(call: Call, x: Value, weight: Value, bias: Value | None, dtype: DType) -> Value:
    """A convolution of tensors with the channels last; its weight is in the usual order."""
    if len(x.shape) < 3:
        raise ShapeError("it needs at least one spatial dimension")
    rank = len(x.shape)
    to_first = (0, rank - 1, *range(1, rank - 1))
    to_last = (0, *range(2, rank), 1)
    nchw = call.view(x, tuple(x.shape[axis] for axis in to_first), "transpose", perm=to_first)
    result = convolve(call, nchw, weight, bias, dtype)
    return call.view(result, tuple(result.shape[axis] for axis in to_last), "transpose", perm=to_last)


@rule("Conv")
def conv(call: Call) -> Value:
    """Conv."""
    x = call.required(0)
    return convolve(call, x, call.required(1), call.optional(2), x.dtype)


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(call: Call) -> Value:
    """Conv, an addition and an activation."""
    x = call.required(0)
    result = convolve(call, x, call.required(1), call.optional(2), x.dtype)
    result = call.add(result, call.optional(3))
    return apply_activation(call, result, call.text_attribute("activation"))


@rule("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(call: Call) -> Value:
    """Conv with the channels last: the sizes are turned round, nothing is moved."""
    x = call.required(0)
    result = convolve_last(call, x, call.required(1), call.optional(2), x.dtype)
    return apply_activation(call, result, call.text_attribute("activation"))


@rule("ConvTranspose")
def conv_transpose(call: Call) -> Value:
    """ConvTranspose."""
    x, weight = call.required(0), call.required(1)
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape) or x.shape[1] != weight.shape[0]:
        raise ShapeError("a transposed convolution needs a weight [channels in, channels out / groups, ...]")
    groups = call.int_attribute("group", 1)
    if groups < 1:
        raise ShapeError("its number of groups is not positive")
    window = read_window(call, x.shape[2:], weight.shape[2:])
    rank = len(window.kernel)
    extra = call.ints_attribute("output_padding") or [0] * rank
    wanted = call.ints_attribute("output_shape")
    is_same = call.text_attribute("auto_pad", "NOTSET").startswith("SAME")
    if len(extra) != rank or (wanted is not None and len(wanted) < rank):
        raise ShapeError(f"its output sizes do not have {rank} dimensions")
    spatial = []
    for axis, size in enumerate(x.shape[2:]):
        extent = window.dilation[axis] * (window.kernel[axis] - 1) + 1
        if wanted:
            spatial.append(wanted[axis - rank])
        elif is_same:
            spatial.append(size * window.stride[axis])
        else:
            padding = window.before[axis] + window.after[axis]
            spatial.append(window.stride[axis] * (size - 1) + extra[axis] + extent - padding)
    if wanted or is_same:
        window.before = (0,) * rank
    shape = (x.shape[0], weight.shape[1] * groups, *spatial)
    inputs = [x, weight, call.optional(2)]
    return call.emit(OpKind.CONV_TRANSPOSE, inputs, shape, x.dtype, groups=groups, **window.attributes())


@rule("DeformConv")
def deform_conv(call: Call) -> Value:
    """A convolution at learned offsets: samples into columns, then multiplies, as torchvision does."""
    x, weight = call.required(0), call.required(1)
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        raise ShapeError("a convolution needs an input and a weight of the same rank, at least 3")
    groups = max(call.int_attribute("group", 1), 1)
    window = read_window(call, x.shape[2:], weight.shape[2:])
    spatial = window.output(x.shape[2:])
    columns = (x.shape[0], x.shape[1] * numel(weight.shape[2:]), *spatial)
    sampled = call.emit(OpKind.GRID_SAMPLE, [x, call.required(2), call.optional(4)], columns, x.dtype, mode="linear")
    flat = call.view(sampled, (x.shape[0], columns[1], numel(spatial)), "reshape")
    shape = (x.shape[0], weight.shape[0], numel(spatial))
    inner = weight.shape[1] * numel(weight.shape[2:])
    product = call.emit(OpKind.MATMUL, [weight, flat], shape, x.dtype, contracted=inner, groups=groups)
    bias = call.optional(3)
    result = call.view(product, (x.shape[0], weight.shape[0], *spatial), "reshape")
    return call.add(result, bias)


@rule("CausalConvWithState")
def causal_conv(call: Call) -> list[Value]:
    """A depthwise causal convolution along the last axis, with the past carried in and out."""
    x, weight = call.required(0), call.required(1)
    if len(x.shape) != 3 or len(weight.shape) != 3:
        raise ShapeError("it needs an input [batch, channels, length] and a weight of rank 3")
    kernel = weight.shape[2]
    past = (x.shape[0], x.shape[1], max(kernel - 1, 0))
    state = call.optional(3)
    joined = call.emit(OpKind.CONCAT, [state, x], (*x.shape[:2], x.shape[2] + past[2]), x.dtype)
    groups = x.shape[1] // weight.shape[1] if weight.shape[1] else 1
    window = Window((kernel,), (1,), (1,), (0,), (0,))
    result = call.emit(
        OpKind.CONV, [joined, weight, call.optional(2)], x.shape, x.dtype, groups=groups, **window.attributes()
    )
    result = apply_activation(call, result, call.text_attribute("activation").replace("none", ""))
    return [result, call.view(joined, past, "slice", axis=2)]
