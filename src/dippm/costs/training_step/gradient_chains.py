"""Gradients that autograd computes by several element-wise operators, each with a result that stays until the last.

As written in PyTorch's ``derivatives.yaml`` and ``FunctionsManual.cpp`` (2.13), for inputs of real numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dippm.costs.training_step.step_builder import StepBuilder
from dippm.graph import DType, OpKind

__all__ = ["GRADIENT_CHAINS", "OPERAND_CHAINS", "run_chain", "run_operand_chains"]

Step = tuple[OpKind, str, tuple[str, ...]]
"""Kind, function and operands of one operator: ``g`` is the gradient of the result, ``x`` the input, ``y`` the result,
``b`` a second input, ``c`` a third one, and a number the result of an earlier step. Comparisons write booleans. What
ends in ``_`` writes over its first operand."""

_COMPARISONS = frozenset({"ge", "gt", "le", "lt", "eq", "and", "or"})
_IN_PLACE = "_"

_ONE_LESS_SQUARE: Sequence[Step] = (
    (OpKind.UNARY, "neg", ("x",)),
    (OpKind.MUL, "", ("0", "x")),
    (OpKind.ADD, "", ("1",)),
    (OpKind.UNARY, "rsqrt", ("2",)),
)

GRADIENT_CHAINS: Mapping[str, Sequence[Step]] = {
    "pow": ((OpKind.POW, "", ("x",)), (OpKind.MUL, "", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "square": ((OpKind.POW, "", ("x",)), (OpKind.MUL, "", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "sqrt": ((OpKind.MUL, "", ("y",)), (OpKind.DIV, "", ("g", "0"))),
    "rsqrt": ((OpKind.POW, "", ("y",)), (OpKind.MUL, "", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "reciprocal": ((OpKind.UNARY, "neg", ("g",)), (OpKind.MUL, "", ("y", "y")), (OpKind.MUL, "", ("0", "1"))),
    "abs": ((OpKind.UNARY, "sgn", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "sin": ((OpKind.UNARY, "cos", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "cos": ((OpKind.UNARY, "sin", ("x",)), (OpKind.UNARY, "neg", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "clamp": (
        (OpKind.BINARY, "ge", ("x",)),
        (OpKind.BINARY, "le", ("x",)),
        (OpKind.BINARY, "where", ("0", "1", "g")),
    ),
    "divisor": (
        (OpKind.DIV, "", ("x", "b")),
        (OpKind.DIV, "", ("0", "b")),
        (OpKind.UNARY, "neg", ("g",)),
        (OpKind.MUL, "", ("2", "1")),
    ),
    "erf": (
        (OpKind.POW, "", ("x",)),
        (OpKind.UNARY, "neg", ("0",)),
        (OpKind.UNARY, "exp", ("1",)),
        (OpKind.MUL, "", ("2",)),
        (OpKind.MUL, "", ("3", "g")),
    ),
    "erfinv": (
        (OpKind.UNARY, "erfinv", ("x",)),
        (OpKind.POW, "", ("0",)),
        (OpKind.UNARY, "exp", ("1",)),
        (OpKind.MUL, "", ("2",)),
        (OpKind.MUL, "", ("3", "g")),
    ),
    "erfc": (
        (OpKind.POW, "", ("x",)),
        (OpKind.UNARY, "neg", ("0",)),
        (OpKind.UNARY, "exp", ("1",)),
        (OpKind.MUL, "", ("2",)),
        (OpKind.MUL, "", ("3", "g")),
    ),
    "exp2": ((OpKind.MUL, "", ("g", "y")), (OpKind.MUL, "", ("0",))),
    "expm1": ((OpKind.ADD, "", ("y",)), (OpKind.MUL, "", ("g", "0"))),
    "log1p": ((OpKind.ADD, "", ("x",)), (OpKind.DIV, "", ("g", "0"))),
    "log2": ((OpKind.MUL, "", ("x",)), (OpKind.DIV, "", ("g", "0"))),
    "log10": ((OpKind.MUL, "", ("x",)), (OpKind.DIV, "", ("g", "0"))),
    "sinh": ((OpKind.UNARY, "cosh", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "cosh": ((OpKind.UNARY, "sinh", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "tan": ((OpKind.POW, "", ("y",)), (OpKind.ADD, "", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "asin": (*_ONE_LESS_SQUARE, (OpKind.MUL, "", ("g", "3"))),
    "acos": (*_ONE_LESS_SQUARE, (OpKind.UNARY, "neg", ("3",)), (OpKind.MUL, "", ("g", "4"))),
    "atan": ((OpKind.MUL, "", ("x", "x")), (OpKind.ADD, "", ("0",)), (OpKind.DIV, "", ("g", "1"))),
    "asinh": (
        (OpKind.POW, "", ("x",)),
        (OpKind.ADD, "", ("0",)),
        (OpKind.UNARY, "rsqrt", ("1",)),
        (OpKind.MUL, "", ("g", "2")),
    ),
    "acosh": (
        (OpKind.POW, "", ("x",)),
        (OpKind.SUB, "", ("0",)),
        (OpKind.UNARY, "rsqrt", ("1",)),
        (OpKind.MUL, "", ("g", "2")),
    ),
    "atanh": (
        (OpKind.POW, "", ("x",)),
        (OpKind.FILL, "ones", ()),
        (OpKind.SUB, "_", ("1", "0")),
        (OpKind.MUL, "", ("g",)),
        (OpKind.DIV, "", ("3", "2")),
    ),
    "lgamma": ((OpKind.UNARY, "digamma", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "norm": ((OpKind.DIV, "", ("x", "y")), (OpKind.MUL, "", ("0", "g"))),
    "binary_cross_entropy_with_logits": (
        (OpKind.UNARY, "sigmoid", ("x",)),
        (OpKind.SUB, "", ("0", "b")),
        (OpKind.MUL, "", ("1", "g")),
        (OpKind.DIV, "_", ("2",)),
    ),
    "logsumexp": ((OpKind.SUB, "", ("x", "y")), (OpKind.UNARY, "exp", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "var": ((OpKind.SUB, "", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "extreme": ((OpKind.BINARY, "eq", ("x", "y")), (OpKind.MUL, "", ("g", "0"))),
    "prod": ((OpKind.DIV, "", ("y", "x")), (OpKind.MUL, "", ("g", "0"))),
    "cumsum": ((OpKind.COPY, "flip", ("g",)), (OpKind.CUMULATIVE, "cumsum", ("0",)), (OpKind.COPY, "flip", ("1",))),
    "cumprod": (
        (OpKind.MUL, "", ("y", "g")),
        (OpKind.COPY, "flip", ("0",)),
        (OpKind.CUMULATIVE, "cumsum", ("1",)),
        (OpKind.COPY, "flip", ("2",)),
        (OpKind.DIV, "", ("3", "x")),
    ),
    "logcumsumexp": (
        (OpKind.UNARY, "abs", ("g",)),
        (OpKind.UNARY, "log", ("0",)),
        (OpKind.BINARY, "gt", ("g",)),
        (OpKind.BINARY, "where", ("2", "1")),
        (OpKind.BINARY, "lt", ("g",)),
        (OpKind.BINARY, "where", ("4", "1")),
        (OpKind.SUB, "", ("3", "y")),
        (OpKind.COPY, "flip", ("6",)),
        (OpKind.CUMULATIVE, "logcumsumexp", ("7",)),
        (OpKind.COPY, "flip", ("8",)),
        (OpKind.ADD, "", ("9", "x")),
        (OpKind.UNARY, "exp", ("10",)),
        (OpKind.SUB, "", ("5", "y")),
        (OpKind.COPY, "flip", ("12",)),
        (OpKind.CUMULATIVE, "logcumsumexp", ("13",)),
        (OpKind.COPY, "flip", ("14",)),
        (OpKind.ADD, "", ("15", "x")),
        (OpKind.UNARY, "exp", ("16",)),
        (OpKind.SUB, "", ("11", "17")),
    ),
}
"""Steps by the function whose gradient they are; ``divisor`` is the second input of a division. What has the size of a
reduction, as the mean has in that of a variance, is left out; those of products are the ones without zeros."""


# Last steps of the statements of chains that have several, at whose ends what else they have written is dropped.
_STATEMENTS: Mapping[str, Sequence[int]] = {
    "logcumsumexp": (1, 3, 5, 11, 17),
    "atan2": (3, 5),
    "copysign": (2,),
    "binary_cross_entropy_with_logits": (1,),
}
# First steps that run once for all inputs.
_SHARED: Mapping[str, int] = {"atan2": 6}


def _extreme(comparison: str) -> Sequence[Step]:
    """The gradient of the larger or smaller of two, half of it where they are equal."""
    return (
        (OpKind.DIV, "", ("g",)),
        (OpKind.BINARY, "eq", ("x", "b")),
        (OpKind.BINARY, "where", ("1", "0", "g")),
        (OpKind.BINARY, comparison, ("x", "b")),
        (OpKind.BINARY, "masked_fill_", ("2", "3")),
    )


_UNIT_CIRCLE: Sequence[Step] = (
    (OpKind.MUL, "", ("x", "x")),
    (OpKind.MUL, "", ("b", "b")),
    (OpKind.ADD, "", ("0", "1")),
    (OpKind.UNARY, "reciprocal", ("2",)),
    (OpKind.BINARY, "eq", ("3",)),
    (OpKind.BINARY, "masked_fill", ("3", "4")),
)


def _between(first: str, second: str, joined: str, one: tuple[str, ...], other: tuple[str, ...]) -> Sequence[Step]:
    """The gradient where two comparisons say so."""
    return (
        (OpKind.BINARY, first, one),
        (OpKind.BINARY, second, other),
        (OpKind.BINARY, joined, ("0", "1")),
        (OpKind.BINARY, "where", ("2", "g")),
    )


OPERAND_CHAINS: Mapping[str, Mapping[int, Sequence[Step]]] = {
    # By tensors: two of them, or one, which is a least element or a largest.
    "clamp": {
        0: _between("ge", "le", "and", ("x", "b"), ("x", "c")),
        2: _between("gt", "lt", "or", ("x", "c"), ("c", "b")),
        1: _between("lt", "lt", "and", ("x", "b"), ("b", "c")),
    },
    "clamp_min": {
        0: ((OpKind.BINARY, "ge", ("x", "b")), (OpKind.BINARY, "where", ("0", "g"))),
        1: ((OpKind.BINARY, "lt", ("x", "b")), (OpKind.BINARY, "where", ("0", "g"))),
    },
    "maximum": {0: _extreme("lt"), 1: _extreme("gt")},
    "minimum": {0: _extreme("gt"), 1: _extreme("lt")},
    "pow": {
        0: (
            (OpKind.SUB, "", ("b",)),
            (OpKind.POW, "", ("x", "0")),
            (OpKind.MUL, "", ("b", "1")),
            (OpKind.MUL, "", ("g", "2")),
            (OpKind.BINARY, "eq", ("b",)),
            (OpKind.BINARY, "where", ("4", "3")),
        ),
        1: (
            (OpKind.BINARY, "ge", ("b",)),
            (OpKind.BINARY, "eq", ("x",)),
            (OpKind.BINARY, "and", ("1", "0")),
            (OpKind.UNARY, "log", ("x",)),
            (OpKind.MUL, "", ("y", "3")),
            (OpKind.BINARY, "where", ("2", "4")),
            (OpKind.MUL, "", ("g", "5")),
        ),
    },
    "remainder": {
        0: (),
        1: ((OpKind.UNARY, "neg", ("g",)), (OpKind.DIV, "", ("x", "b")), (OpKind.MUL, "", ("0", "1"))),
    },
    "atan2": {
        0: (*_UNIT_CIRCLE, (OpKind.MUL, "", ("b", "5")), (OpKind.MUL, "", ("g", "6"))),
        1: (
            *_UNIT_CIRCLE,
            (OpKind.UNARY, "neg", ("x",)),
            (OpKind.MUL, "", ("6", "5")),
            (OpKind.MUL, "", ("g", "7")),
        ),
    },
    "copysign": {
        0: (
            (OpKind.DIV, "", ("y", "x")),
            (OpKind.BINARY, "eq", ("x",)),
            (OpKind.BINARY, "masked_fill_", ("0", "1")),
            (OpKind.MUL, "", ("g", "2")),
        ),
        1: ((OpKind.FILL, "zeros", ("b",)),),
    },
    "hypot": {
        0: ((OpKind.DIV, "", ("x", "y")), (OpKind.MUL, "", ("g", "0"))),
        1: ((OpKind.DIV, "", ("b", "y")), (OpKind.MUL, "", ("g", "0"))),
    },
    "logaddexp": dict.fromkeys(
        (0, 1),
        (
            (OpKind.SUB, "", ("b", "x")),
            (OpKind.UNARY, "exp", ("0",)),
            (OpKind.ADD, "", ("1",)),
            (OpKind.DIV, "", ("g", "2")),
        ),
    ),
    "xlogy": {
        0: (
            (OpKind.BINARY, "xlogy", ("g", "b")),
            (OpKind.BINARY, "eq", ("x",)),
            (OpKind.BINARY, "le", ("b",)),
            (OpKind.BINARY, "and", ("1", "2")),
            (OpKind.BINARY, "masked_fill", ("0", "3")),
        ),
        1: ((OpKind.MUL, "", ("g", "x")), (OpKind.DIV, "", ("0", "b"))),
    },
    "addcmul": {
        0: (),
        2: ((OpKind.MUL, "", ("b",)), (OpKind.MUL, "", ("g", "0"))),
        1: ((OpKind.MUL, "", ("c",)), (OpKind.MUL, "", ("g", "0"))),
    },
    "addcdiv": {
        0: (),
        2: (
            (OpKind.MUL, "", ("c", "c")),
            (OpKind.MUL, "", ("b",)),
            (OpKind.DIV, "", ("1", "0")),
            (OpKind.UNARY, "neg", ("g",)),
            (OpKind.MUL, "", ("3", "2")),
        ),
        1: ((OpKind.FILL, "ones", ("c",)), (OpKind.DIV, "_", ("0", "c")), (OpKind.MUL, "", ("g", "1"))),
    },
}
"""Steps by the function of an operator of several inputs and the place of the one whose gradient they are; none where
that is the gradient of the result. The last one here runs first: autograd goes by the names of inputs."""


def run_chain(builder: StepBuilder, name: str, operands: Mapping[str, int], *, like: int) -> int:
    """Append the operators of a chain.

    Args:
        builder: Where they go.
        name: Which chain of :data:`GRADIENT_CHAINS`.
        operands: Tensors by the letters that its steps have for them.
        like: A tensor of the shape of all results.

    Returns:
        The last result.
    """
    # The modulus of a complex number is real, its gradient complex.
    widest = "x" if "x" in operands and builder.dtype(operands["x"]).is_complex else "g"
    dtype = builder.dtype(operands[widest])
    return _run(builder, name, GRADIENT_CHAINS[name], dict(operands), dtype=dtype, like=like)


def run_operand_chains(
    builder: StepBuilder, name: str, operands: Mapping[str, int], wanted: Collection[int]
) -> dict[int, int]:
    """Append the operators of the gradients of several inputs.

    Args:
        builder: Where they go.
        name: Which entry of :data:`OPERAND_CHAINS`.
        operands: Tensors by the letters that its steps have for them, those that are no numbers.
        wanted: Places of the inputs.

    Returns:
        For each place the last result, or the gradient of the operator's result where nothing runs; each has the shape
        of that.
    """
    dtype = builder.dtype(operands["g"])
    results: dict[int, int] = {}
    shared: dict[str, int] = {}
    begin = len(builder.nodes)
    for position, steps in tuple(OPERAND_CHAINS[name].items())[::-1]:
        if position in wanted:
            given = {**operands, **shared}
            results[position] = _run(builder, name, steps, given, dtype=dtype, start=len(shared))
            shared = {place: given[place] for place in map(str, range(_SHARED.get(name, 0)))}
    if shared:
        # What follows for all inputs is one statement.
        end = len(builder.nodes) - 1
        builder.chain_ends.update(dict.fromkeys(range(begin + len(shared), end + 1), end))
    return results


def _run(
    builder: StepBuilder,
    name: str,
    steps: Sequence[Step],
    given: dict[str, int],
    *,
    dtype: DType,
    like: int | None = None,
    start: int = 0,
) -> int:
    """Append steps from one on, add what they write to what is given, and return the last of that."""
    result = given["g"]
    first = len(builder.nodes) - start
    ends = (*_STATEMENTS.get(name, ()), len(steps) - 1)
    for place, (kind, function, letters) in enumerate(steps[start:], start):
        builder.chain_ends[first + place] = first + next(end for end in ends if end >= place)
        inputs = tuple(given[letter] for letter in letters if letter in given)
        if function.endswith(_IN_PLACE):
            result = builder.new_tensor(builder.shape(inputs[0]), builder.dtype(inputs[0]), alias_of=inputs[0])
        else:
            of_step = DType.BOOL if function in _COMPARISONS else dtype
            shaped = _shaped_like(builder, inputs, given["g"]) if like is None else like
            result = builder.new_like(shaped, dtype=of_step)
        read = () if kind is OpKind.FILL else inputs
        builder.run(kind, read, (result,), f"{name}_backward", function=function.removesuffix(_IN_PLACE))
        given[str(place)] = result
    return result


def _shaped_like(builder: StepBuilder, operands: Sequence[int], whole: int) -> int:
    """What a result has the shape of: operands of one shape, else the whole that they are spread over."""
    return operands[0] if len({builder.shape(operand) for operand in operands}) == 1 else whole
