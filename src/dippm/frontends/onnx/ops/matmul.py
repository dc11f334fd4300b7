"""Matrix products."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from dippm.frontends.onnx.ops.convolution import apply_activation
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, numel
from dippm.graph import DType, OpKind

__all__ = ["gemm", "multiply"]

_ELLIPSIS_CHARACTERS = 0x3B1


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
    for value, side in ((a, "A"), (b, "B")):
        rank = len(value.shape)
        axes = list(range(rank))
        if call.int_attribute(f"transBatch{side}") and rank > 2:
            # The first dimension behind those of the batch.
            axes = [*axes[1:-1], 0, rank - 1]
        if call.int_attribute(f"trans{side}") and rank > 1:
            axes[-2:] = axes[:-3:-1]
        perm = tuple(axes)
        if perm != tuple(range(rank)):
            turned = call.view(value, tuple(value.shape[axis] for axis in perm), "transpose", perm=perm)
            turned.base = value if value.is_static else None
            value = turned
        sides.append(value)
    result = multiply(call, sides[0], sides[1], a.dtype)
    return apply_activation(call, result, call.text_attribute("activation"))


@rule("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(call: Call) -> Value:
    """A product, its bias, then GELU."""
    x, bias = call.required(0), call.optional(2)
    result = multiply(call, x, call.required(1), x.dtype)
    result = call.add(result, bias)
    return call.emit(OpKind.GELU, [result], result.shape, x.dtype)


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
    for position, (operand, letters) in enumerate(zip(operands, expanded, strict=True)):
        operands[position], expanded[position] = _without_repeats(call, operand, letters, sizes)
    if len(operands) == 1:
        return _rearrange(call, operands[0], expanded[0], result)
    # Two at a time from the left, as PyTorch and onnxruntime do.
    left, letters = operands[0], expanded[0]
    for position in range(1, len(operands)):
        later = {letter for term in expanded[position + 1 :] for letter in term}
        right, others = operands[position], expanded[position]
        left, letters = _sum_private(call, left, letters, {*others, *later, *result})
        right, others = _sum_private(call, right, others, {*letters, *later, *result})
        known = {*letters, *others}
        kept = [letter for letter in result if letter in known]
        kept += sorted(letter for letter in known if letter in later and letter not in result)
        left, letters = _contract(call, (left, right), (letters, others), kept, sizes), kept
    return left


def _without_repeats(call: Call, x: Value, letters: Sequence[str], sizes: Mapping[str, int]) -> tuple[Value, list[str]]:
    """A factor with each of its letters once: of one that it has twice, the diagonal; without those it is spread over.

    Args:
        call: The operator.
        x: The factor.
        letters: Its letters.
        sizes: Size of each letter in the whole sum.
    """
    found: list[str] = []
    for letter in letters:
        if letter not in found:
            found.append(letter)
            continue
        first, second = found.index(letter), len(found)
        if x.shape[first] != x.shape[second]:
            raise ShapeError(f"index '{letter}' is both {x.shape[first]} and {x.shape[second]}")
        rest = tuple(size for axis, size in enumerate(x.shape) if axis not in (first, second))
        x = call.view(x, (*rest, x.shape[first]), "diagonal", axes=(first, second))
        last = len(rest)
        perm = (*range(first), last, *range(first, last))
        x = call.view(x, tuple(x.shape[axis] for axis in perm), "transpose", perm=perm)
    own = [letter for letter, size in zip(found, x.shape, strict=True) if size == sizes[letter]]
    if len(own) < len(found):
        x = call.view(x, tuple(sizes[letter] for letter in own), "reshape")
    return x, own


def _rearrange(call: Call, x: Value, letters: Sequence[str], wanted: Sequence[str]) -> Value:
    """One tensor in another order, and summed over what is not wanted, which PyTorch puts last."""
    order = [*wanted, *sorted(letter for letter in letters if letter not in wanted)]
    x = _turn(call, x, letters, order)
    axes = tuple(range(len(wanted), len(order)))
    return call.emit(OpKind.REDUCE, [x], x.shape[: len(wanted)], x.dtype, function="sum", axes=axes) if axes else x


def _turn(call: Call, x: Value, letters: Sequence[str], order: Sequence[str]) -> Value:
    perm = tuple(letters.index(letter) for letter in order)
    return call.view(x, tuple(x.shape[axis] for axis in perm), "transpose", perm=perm)


def _sum_private(call: Call, x: Value, letters: list[str], others: Container[str]) -> tuple[Value, list[str]]:
    """A factor summed over the letters that nothing else has."""
    shared = [letter for letter in letters if letter in others]
    if shared == letters:
        return x, letters
    axes = tuple(axis for axis, letter in enumerate(letters) if letter not in others)
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    return call.emit(OpKind.REDUCE, [x], shape, x.dtype, function="sum", axes=axes), shared


def _contract(
    call: Call,
    factors: tuple[Value, Value],
    terms: tuple[list[str], list[str]],
    kept: list[str],
    sizes: Mapping[str, int],
) -> Value:
    """The product of two tensors, summed over the letters that are not kept.

    How it is laid out follows from its equation when copies are settled, after passes that know it as it is written.
    """
    shape, dtype = tuple(sizes[letter] for letter in kept), factors[0].dtype
    summed = {*terms[0], *terms[1]} - {*kept}
    if not summed:
        return call.emit(
            OpKind.MUL, [_align(call, *pair, kept) for pair in zip(factors, terms, strict=True)], shape, dtype
        )
    contracted = max(numel(sizes[letter] for letter in summed), 1)
    left, right, result = ("".join(map(_character, letters)) for letters in (*terms, kept))
    return call.emit(OpKind.MATMUL, factors, shape, dtype, contracted=contracted, equation=f"{left},{right}->{result}")


def _align(call: Call, x: Value, letters: Sequence[str], order: Sequence[str]) -> Value:
    """A factor with a dimension for each letter."""
    letters = list(letters)
    for letter in order:
        if letter not in letters:
            letters.append(letter)
            x = call.view(x, (*x.shape, 1), "unsqueeze")
    return _turn(call, x, letters, order)


def _character(letter: str) -> str:
    """One character for an index: dimensions of an ellipsis have names of more."""
    return chr(_ELLIPSIS_CHARACTERS + int(letter[3:])) if letter.startswith("...") else letter


def _expand_ellipsis(term: str, rank: int) -> list[str]:
    """Index letters, the dimensions of an ellipsis numbered from the last."""
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    if not dots or missing < 0:
        return list(term)
    return [*head, *(f"...{missing - 1 - i}" for i in range(missing)), *tail]
