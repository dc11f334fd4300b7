"""Layers on quantised tensors: their weights become floating-point numbers at every call.

See :mod:`dippm.frontends.onnx.ops.quantization` for how a quantised operator is read. Operators whose result is a
32-bit integer sum hand on a number of the same size: the conversion that follows them in every model costs nothing.
"""

from __future__ import annotations

from dippm.frontends.onnx.ops.attention import packed_attention
from dippm.frontends.onnx.ops.convolution import convolve, convolve_last
from dippm.frontends.onnx.ops.matmul import gemm, multiply
from dippm.frontends.onnx.ops.quantization import as_integers, as_numbers, numbers_at
from dippm.frontends.onnx.ops.recurrent import recurrent
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import DType, OpKind

__all__: list[str] = []


@rule("MatMulInteger")
@rule("MatMulInteger16", domain=MICROSOFT)
def matmul_integer(call: Call) -> Value:
    """MatMul of integers into 32 bits."""
    a, b = _shifted(call, 0, 2), _shifted(call, 1, 3)
    return multiply(call, a, b, a.dtype)


@rule("ConvInteger")
def conv_integer(call: Call) -> Value:
    """Conv of integers into 32 bits."""
    x, weight = _shifted(call, 0, 2), _shifted(call, 1, 3)
    return convolve(call, x, weight, None, x.dtype)


@rule("QLinearMatMul")
def qlinear_matmul(call: Call) -> Value:
    """MatMul of quantised tensors, quantised again."""
    a, b = numbers_at(call, 0), numbers_at(call, 3)
    return as_integers(call, multiply(call, a, b, a.dtype), call.optional(6), call.required(7))


@rule("QLinearConv")
def qlinear_conv(call: Call) -> Value:
    """Conv of quantised tensors, quantised again."""
    x, weight = numbers_at(call, 0), numbers_at(call, 3)
    bias = call.optional(8)
    if bias is not None:
        bias = as_numbers(call, bias, call.optional(4))
    run = convolve_last if call.int_attribute("channels_last") else convolve  # onnxruntime's own copy has it
    return as_integers(call, run(call, x, weight, bias, x.dtype), call.optional(6), call.required(7))


@rule("QGemm", domain=MICROSOFT)
def qgemm(call: Call) -> Value:
    """Gemm of quantised tensors, quantised again where a scale for the result is given."""
    addend = call.optional(6)
    if addend is not None:
        addend = as_numbers(call, addend, call.optional(4))
    result = gemm(Call(call.op, [numbers_at(call, 0), numbers_at(call, 3), addend], call.evaluator))
    return result if call.optional(7) is None else as_integers(call, result, call.optional(7), call.optional(8))


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(call: Call) -> Value:
    """MatMul of quantised tensors into numbers."""
    a = as_numbers(call, call.required(0), call.optional(2), call.optional(4))
    b = as_numbers(call, call.required(1), call.optional(3), call.optional(5))
    return call.add(multiply(call, a, b, a.dtype), call.optional(6))


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(call: Call) -> Value:
    """MatMul with a quantised weight; the other factor stays as it is, for its numbers are at hand."""
    a = call.required(0)
    b = as_numbers(call, call.required(1), call.optional(2), call.optional(3))
    return call.add(multiply(call, a, b, a.dtype), call.optional(4))


@rule("QAttention", domain=MICROSOFT)
def qattention(call: Call) -> list[Value]:
    """Attention with its projection, on quantised tensors."""
    x = as_numbers(call, call.required(0), call.optional(3), call.optional(6))
    weight = as_numbers(call, call.required(1), call.optional(4), call.optional(7))
    inputs = [x, weight, call.optional(2), call.optional(5), call.optional(8)]
    return packed_attention(Call(call.op, inputs, call.evaluator))


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(call: Call) -> list[Value]:
    """LSTM with quantised weights, which stand turned round."""
    turned = []
    for position, scale in ((1, 8), (2, 10)):
        weight = call.required(position)
        if len(weight.shape) != 3:
            raise ShapeError("its weight and recurrence must have three dimensions")
        numbers = as_numbers(call, weight, call.optional(scale), call.optional(scale + 1))
        shape = (weight.shape[0], weight.shape[2], weight.shape[1])
        turned.append(call.view(numbers, shape, "transpose", perm=(0, 2, 1)))
    return recurrent(Call(call.op, [call.required(0), *turned, *call.inputs[3:8]], call.evaluator))


@rule("QEmbedLayerNormalization", domain=MICROSOFT)
def quantized_embed_layer_norm(call: Call) -> list[Value]:
    """BERT's embeddings from quantised tables, added up and normalized."""
    ids = call.required(0)
    total: Value | None = None
    for table, indices, scale in ((2, ids, 8), (3, ids, 9), (4, call.optional(1), 10)):
        stored = call.optional(table)
        if stored is None or indices is None:
            continue
        if len(stored.shape) != 2:
            raise ShapeError("its tables must have two dimensions")
        rows = call.emit(OpKind.EMBEDDING, [stored, indices], (*ids.shape, stored.shape[1]), stored.dtype)
        numbers = as_numbers(call, rows, call.optional(scale), call.optional(scale + 5))
        total = numbers if total is None else call.add(total, numbers)
    if total is None:
        raise ShapeError("it lacks its table of words")
    gains = [as_numbers(call, call.required(p), call.optional(p + 6), call.optional(p + 11)) for p in (5, 6)]
    result = call.emit(OpKind.LAYER_NORM, [total, *gains], total.shape, total.dtype, axes_size=total.shape[-1])
    mask = call.emit(OpKind.FILL, [], ids.shape[:1], DType.INT32, function="mask")
    return [result, mask]


def _shifted(call: Call, position: int, zero_point: int) -> Value:
    """An input without a scale, as numbers."""
    return as_numbers(call, call.required(position), None, call.optional(zero_point))
