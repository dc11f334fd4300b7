"""Fourier transforms."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis
from dippm.graph import OpKind

__all__: list[str] = []


@rule("DFT")
def dft(call: Call) -> Value:
    """A Fourier transform along an axis; the last dimension holds the real and imaginary parts."""
    x = call.required(0)
    rank = len(x.shape)
    axis_input = call.known_ints(2)
    axis = axis_input[0] if axis_input else call.int_attribute("axis", 1 if call.op.version < 20 else -2)
    axis = normalize_axis(axis, rank)
    if rank < 2 or axis == rank - 1:
        raise ShapeError("its axis must come before the dimension of real and imaginary parts")
    length = call.known_ints(1)
    size = length[0] if length else x.shape[axis]
    is_onesided, is_inverse = bool(call.int_attribute("onesided")), bool(call.int_attribute("inverse"))
    if is_onesided and is_inverse:
        size = length[0] if length else 2 * (size - 1)
    elif is_onesided:
        size = size // 2 + 1
    parts = 1 if is_onesided and is_inverse else 2
    shape = [*x.shape[:-1], parts]
    shape[axis] = size
    return call.emit(OpKind.FFT, [x], tuple(shape), x.dtype, axes=(axis,), parts=x.shape[-1])


@rule("STFT")
def stft(call: Call) -> Value:
    """Fourier transforms of overlapping frames."""
    x = call.required(0)
    step = call.known_ints(1)
    window, frame = call.optional(2), call.known_ints(3)
    if not step or step[0] < 1 or len(x.shape) < 2:
        raise ShapeError("its step is not known or its signal has no time axis")
    length = frame[0] if frame else (window.shape[0] if window is not None and window.shape else 0)
    if not 0 < length <= x.shape[1]:
        raise ShapeError(f"a frame of {length} does not fit a signal of {x.shape[1]}")
    frames = (x.shape[1] - length) // step[0] + 1
    bins = length // 2 + 1 if call.int_attribute("onesided", 1) else length
    parts = x.shape[2] if len(x.shape) > 2 else 1
    pieces = call.view(x, (x.shape[0], frames, length, *x.shape[2:]), "as_strided")
    if window is not None:
        pieces = call.emit(OpKind.MUL, [pieces, window], pieces.shape, x.dtype)
    return call.emit(OpKind.FFT, [pieces], (x.shape[0], frames, bins, 2), x.dtype, axes=(2,), parts=parts)


@rule("Rfft", "Irfft", domain=MICROSOFT)
@rule("Rfft", "Irfft", domain="com.microsoft.experimental")
def rfft(call: Call) -> Value:
    """A Fourier transform of the last dimensions."""
    x = call.required(0)
    count = call.int_attribute("signal_ndim", 1)
    if call.op.op_type == "Rfft":
        if not 0 < count <= len(x.shape):
            raise ShapeError("its signal dimensions do not fit its input")
        shape = (*x.shape[:-1], x.shape[-1] // 2 + 1, 2)
        first, parts = len(x.shape) - count, 1
    else:
        if not 0 < count < len(x.shape):
            raise ShapeError("its signal dimensions do not fit its input")
        shape = (*x.shape[:-2], 2 * (x.shape[-2] - 1))
        first, parts = len(x.shape) - 1 - count, 2
    axes = tuple(range(first, first + count))
    return call.emit(OpKind.FFT, [x], shape, x.dtype, axes=axes, parts=parts)
