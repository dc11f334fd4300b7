"""Weights of a few bits, packed several to a byte in blocks with a scale each, as language models store them."""

from __future__ import annotations

from dippm.frontends.onnx.ops.quantization import as_numbers
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__ = ["stored_type", "unpacked"]

_BY_BITS = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}


def stored_type(bits: int) -> DType | None:
    """The type of whole numbers of so many bits, None where none is packed so."""
    return _BY_BITS.get(bits)


def unpacked(packed: Value, shape: tuple[int, ...], dtype: DType | None) -> Value:
    """A stored weight with the sizes that it stands for; several operators may share it."""
    if dtype is None:
        raise ShapeError("its weight must be packed into 2, 4 or 8 bits")
    if not packed.is_static or packed.shape == shape:
        return packed
    stored, wanted = numel(packed.shape) * packed.dtype.bits, numel(shape) * dtype.bits
    if stored < wanted:
        raise ShapeError(f"a weight of {list(packed.shape)} is too small for {list(shape)} of {dtype.bits} bits each")
    packed.shape, packed.dtype = shape, dtype
    return packed


def _linear(
    call: Call,
    a: Value,
    *,
    packed: Value,
    dtype: DType | None,
    columns: int,
    scales: Value | None = None,
    zero_points: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """A linear layer whose weight is unpacked by a kernel of its own."""
    inner = call.int_attribute("K", a.shape[-1] if a.shape else 0)
    if not a.shape or a.shape[-1] != inner or inner < 1 or columns < 1:
        raise ShapeError(f"{list(a.shape[-1:])} columns meet {inner} rows and {columns} columns")
    stored = unpacked(packed, (columns, inner), dtype)
    weight = as_numbers(call, stored, scales, zero_points, a.dtype)
    return call.emit(OpKind.LINEAR, [a, weight, bias], (*a.shape[:-1], columns), a.dtype)


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(call: Call) -> Value:
    """A linear layer whose weight is packed into a few bits."""
    return _linear(
        call,
        call.required(0),
        packed=call.required(1),
        dtype=stored_type(call.int_attribute("bits", 4)),
        columns=call.int_attribute("N"),
        scales=call.required(2),
        zero_points=call.optional(3),
        bias=call.optional(5),
    )


@rule("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(call: Call) -> Value:
    """A linear layer whose weight is packed into four bits as bitsandbytes does."""
    columns = call.int_attribute("N")
    return _linear(
        call, call.required(0), packed=call.required(1), dtype=DType.UINT4, columns=columns, scales=call.required(2)
    )


@rule("MatMulFpQ4", domain=MICROSOFT)
def matmul_fp_q4(call: Call) -> Value:
    """A linear layer whose packed weight holds its own scales; its shape is an input."""
    shape = call.known_ints(2)
    if shape is None or len(shape) != 2:
        raise ShapeError("the shape of its weight is not known")
    return _linear(call, call.required(0), packed=call.required(1), dtype=DType.UINT4, columns=shape[1])


@rule("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", domain=MICROSOFT)
def matmul_block_quantized(call: Call) -> Value:
    """A linear layer whose weight is stored in small floating-point numbers, [columns, rows]."""
    is_four = call.op.op_type == "MatMulBlockQuantizedFp4Weight"
    packed = call.required(1)
    if len(packed.shape) != 2:
        raise ShapeError("its weight must have two dimensions")
    return _linear(
        call,
        call.required(0),
        packed=packed,
        dtype=DType.FLOAT4 if is_four else DType.FLOAT8,
        columns=packed.shape[0],
        scales=call.required(2),
        bias=call.optional(5 if is_four else 4),
    )


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(call: Call) -> Value:
    """Rows of a packed table, unpacked."""
    table, indices, scales = call.required(0), call.required(1), call.required(2)
    axis = normalize_axis(call.int_attribute("gather_axis"), len(table.shape))
    shape = list(table.shape)
    dtype: DType | None = table.dtype
    if table.dtype is DType.UINT8:
        # Bytes hold several elements along the last dimension.
        dtype = stored_type(call.int_attribute("bits", 4))
        shape[-1] *= 8 // dtype.bits if dtype is not None else 1
    stored = unpacked(table, tuple(shape), dtype)
    taken = (*stored.shape[:axis], *indices.shape, *stored.shape[axis + 1 :])
    kind = OpKind.EMBEDDING if axis == 0 and stored.is_static and len(stored.shape) == 2 else OpKind.GATHER
    rows = call.emit(kind, [stored, indices], taken, stored.dtype)
    return as_numbers(call, rows, scales, call.optional(3))
