"""Matrix products."""

from __future__ import annotations

from dippm.frontends.onnx.ops.convolution import apply_activation
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, numel
from dippm.graph import Attribute, DType, OpKind

__all__ = ["gemm", "multiply"]


def multiply(call: Call, a: Value, b: Value, dtype: DType) -> Value:
    """Numpy's matrix product; one with a stored matrix on the right is a linear layer."""
    if not a.shape or not b.shape:
        raise ShapeError("a matrix product needs at least one dimension on each side")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise ShapeError(f"{left[-1]} columns meet {right[-2]} rows")
    batch = broadcast(left[:-2], right[:-2])
    shape = batch
    if len(a.shape) > 1:
        shape = (*shape, left[-2])
    if len(b.shape) > 1:
        shape = (*shape, right[-1])
    if b.is_static and len(b.shape) == 2:
        return call.emit(OpKind.LINEAR, [a, b.base or b], shape, dtype)
    return call.emit(OpKind.MATMUL, [a, b], shape, dtype)


@rule("MatMul")
def matmul(call: Call) -> Value:
    """MatMul."""
    a = call.required(0)
    return multiply(call, a, call.required(1), a.dtype)


@rule("Gemm")
@rule("FusedGemm", "GemmFloat8", domain=MICROSOFT)
def gemm(call: Call) -> Value:
    """Alpha A B + beta C."""
    a, b, c = call.required(0), call.required(1), call.optional(2)
    is_a_turned, is_b_turned = bool(call.int_attribute("transA")), bool(call.int_attribute("transB"))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ShapeError("both factors must have two dimensions")
    rows, inner = reversed(a.shape) if is_a_turned else a.shape
    right, columns = reversed(b.shape) if is_b_turned else b.shape
    if inner != right:
        raise ShapeError(f"{inner} columns meet {right} rows")
    shape = (rows, columns)
    if c is not None and broadcast(shape, c.shape) != shape:
        raise ShapeError(f"an addend of {list(c.shape)} does not fit {list(shape)}")
    if is_a_turned:
        a = call.view(a, (rows, inner), "transpose", perm=(1, 0))
    if b.is_static:
        is_bias = c is not None and c.is_static and c.shape in ((columns,), (1, columns))
        inputs = [a, b.base or b, c] if is_bias else [a, b.base or b]
        result = call.emit(OpKind.LINEAR, inputs, shape, a.dtype)
        if c is not None and not is_bias:
            result = call.emit(OpKind.ADD, [result, c], shape, a.dtype)
    else:
        if is_b_turned:
            b = call.view(b, (inner, columns), "transpose", perm=(1, 0))
        result = call.emit(OpKind.MATMUL, [a, b], shape, a.dtype)
        if c is not None:
            result = call.emit(OpKind.ADD, [result, c], shape, a.dtype)
    return apply_activation(call, result, call.text_attribute("activation"))


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(call: Call) -> Value:
    """MatMul with either side turned."""
    a, b = call.required(0), call.required(1)
    sides = []
    for value, name in ((a, "transA"), (b, "transB")):
        if call.int_attribute(name) and len(value.shape) > 1:
            rank = len(value.shape)
            perm = (*range(rank - 2), rank - 1, rank - 2)
            turned = call.view(value, tuple(value.shape[axis] for axis in perm), "transpose", perm=perm)
            turned.base = value if value.is_static else None
            value = turned
        sides.append(value)
    result = multiply(call, sides[0], sides[1], a.dtype)
    return apply_activation(call, result, call.text_attribute("activation"))


@rule("Einsum")
def einsum(call: Call) -> Value | list[Value]:
    """A product of tensors by index letters."""
    operands = [call.required(position) for position in range(len(call.inputs))]
    equation = call.text_attribute("equation").replace(" ", "")
    sides, _, wanted = equation.partition("->")
    terms = sides.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"'{equation[:100]}' names {len(terms)} operands, there are {len(operands)}")
    sizes: dict[str, int] = {}
    expanded = []
    for term, operand in zip(terms, operands, strict=True):
        letters = _expand_ellipsis(term, len(operand.shape))
        if len(letters) != len(operand.shape):
            raise ShapeError(f"'{term[:50]}' does not fit {len(operand.shape)} dimensions")
        for letter, size in zip(letters, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                if 1 not in (size, sizes[letter]):
                    raise ShapeError(f"index '{letter}' is both {sizes[letter]} and {size}")
                sizes[letter] = max(size, sizes[letter])
        expanded.append(letters)
    outer = sorted((letter for letter in sizes if letter.startswith("...")), key=lambda letter: -int(letter[3:]))
    if "->" in equation:
        head, dots, tail = wanted.partition("...")
        result = [*head, *(outer if dots else []), *tail]
    else:
        joined = [letter for letters in expanded for letter in letters]
        result = [*outer, *sorted(letter for letter in sizes if letter not in outer and joined.count(letter) == 1)]
    if any(letter not in sizes for letter in result):
        raise ShapeError(f"'{equation[:100]}' asks for an index that no operand has")
    shape = tuple(sizes[letter] for letter in result)
    dtype = operands[0].dtype
    summed = [letter for letter in sizes if letter not in result]
    if len(operands) == 1:
        if not summed:
            perm = tuple(expanded[0].index(letter) for letter in result) if len(result) == len(expanded[0]) else ()
            return call.emit(OpKind.VIEW, operands, shape, dtype, function="transpose", perm=perm)
        axes = tuple(axis for axis, letter in enumerate(expanded[0]) if letter in summed)
        return call.emit(OpKind.REDUCE, operands, shape, dtype, function="sum", axes=axes)
    if not summed and len(operands) == 2:
        return call.emit(OpKind.MUL, operands, shape, dtype)
    attributes: dict[str, Attribute] = {"contracted": max(numel(sizes[letter] for letter in summed), 1)}
    last = operands[-1]
    is_linear = len(operands) == 2 and last.is_static and not (set(expanded[0]) & set(expanded[1]) & set(result))
    if is_linear and result[-1:] and result[-1] in expanded[1]:
        return call.emit(OpKind.LINEAR, operands, shape, dtype, **attributes)
    return call.emit(OpKind.MATMUL, operands, shape, dtype, **attributes)


def _expand_ellipsis(term: str, rank: int) -> list[str]:
    """Index letters, the dimensions of an ellipsis numbered from the last."""
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    if not dots or missing < 0:
        return list(term)
    return [*head, *(f"...{missing - 1 - i}" for i in range(missing)), *tail]
