"""Gradients that autograd computes by several element-wise operators, each with a result that stays until the last.

As written in PyTorch's ``derivatives.yaml`` and ``FunctionsManual.cpp`` (2.13), for inputs of real numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dippm.costs.training_step.step_builder import StepBuilder
from dippm.graph import DType, OpKind

__all__ = ["GRADIENT_CHAINS", "run_chain"]

Step = tuple[OpKind, str, tuple[str, ...]]
"""Kind, function and operands of one operator: ``g`` is the gradient of the result, ``x`` the input, ``y`` the result,
``b`` a second input, and a digit the result of an earlier step. Comparisons write booleans."""

_COMPARISONS = frozenset({"ge", "le", "eq"})

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
    "norm": ((OpKind.DIV, "", ("x", "y")), (OpKind.MUL, "", ("0", "g"))),
    "logsumexp": ((OpKind.SUB, "", ("x", "y")), (OpKind.UNARY, "exp", ("0",)), (OpKind.MUL, "", ("g", "1"))),
    "var": ((OpKind.SUB, "", ("x",)), (OpKind.MUL, "", ("g", "0"))),
    "cumsum": ((OpKind.COPY, "flip", ("g",)), (OpKind.CUMULATIVE, "cumsum", ("0",)), (OpKind.COPY, "flip", ("1",))),
    "cumprod": (
        (OpKind.MUL, "", ("y", "g")),
        (OpKind.COPY, "flip", ("0",)),
        (OpKind.CUMULATIVE, "cumsum", ("1",)),
        (OpKind.COPY, "flip", ("2",)),
        (OpKind.DIV, "", ("3", "x")),
    ),
}
"""Steps by the function whose gradient they are; ``divisor`` is the second input of a division. What has the size of a
reduction, as the mean has in that of a variance, is left out; that of a running product is the one without zeros."""


def run_chain(builder: StepBuilder, name: str, operands: Mapping[str, int], *, like: int) -> int:
    """Append the operators of a chain.

    Args:
        builder: Where they go.
        name: Which chain.
        operands: Tensors by the letters of :data:`GRADIENT_CHAINS`.
        like: A tensor of the shape of all results.

    Returns:
        The last result.
    """
    given = dict(operands)
    # The modulus of a complex number is real, its gradient complex.
    widest = "x" if "x" in operands and builder.dtype(operands["x"]).is_complex else "g"
    result = like
    first, end = len(builder.nodes), len(builder.nodes) + len(GRADIENT_CHAINS[name]) - 1
    builder.chain_ends.update(dict.fromkeys(range(first, end + 1), end))
    for place, (kind, function, letters) in enumerate(GRADIENT_CHAINS[name]):
        dtype = DType.BOOL if function in _COMPARISONS else builder.dtype(operands[widest])
        result = builder.new_like(like, dtype=dtype)
        builder.run(kind, tuple(given[letter] for letter in letters), (result,), f"{name}_backward", function=function)
        given[str(place)] = result
    return result
