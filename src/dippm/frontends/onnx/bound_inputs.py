"""Inputs of one number whose value the caller gave: the program holds it as it holds its own constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from dippm.errors import UsageError
from dippm.frontends.inputs import unknown_input
from dippm.frontends.onnx.element_types import NUMPY_TYPES
from dippm.frontends.onnx.program import InputDeclaration, Program, Weight

__all__ = ["bind_values"]

_TOO_LARGE = 2**64


def bind_values(program: Program, values: Mapping[str, bool | int | float]) -> None:
    """Put numbers in the place of inputs, such as the rounds of a loop or the ``k`` of a selection.

    Args:
        program: The model; the inputs are no inputs of it any more.
        values: Numbers by the input's name.

    Raises:
        UsageError: ``input.name_unknown``, ``input.value`` where an input does not hold one number or not this one.
    """
    for name, value in values.items():
        declaration = next((each for each in program.inputs if each.name == name), None)
        if declaration is None:
            raise unknown_input(name, [each.name for each in program.inputs], of="The model")
        program.constants[declaration.value] = _constant(declaration, value)
        program.inputs.remove(declaration)


def _constant(declaration: InputDeclaration, value: bool | int | float) -> Weight:
    name, dims = declaration.name, declaration.dims
    if dims is None or any(dim != 1 for dim in dims):
        shape = "unknown" if dims is None else ", ".join(str(dim or "?") for dim in dims)
        raise UsageError(
            f"A value is for an input of one number; the shape of '{name}' is {shape}. Got the value {value!r}.",
            code="input.value",
            cure=f"Give the shape of one sample with a single '=', as {name}=3,224,224.",
        )
    dtype = NUMPY_TYPES.get(declaration.dtype)
    if dtype is None or not _has(dtype, value):
        raise UsageError(
            f"Input '{name}' holds a number of type {declaration.dtype.value}. Got the value {value!r}.",
            code="input.value",
            cure="Give a number of that type.",
        )
    data = np.full([1] * len(dims), value, dtype=dtype)
    return Weight(name=name, shape=data.shape, dtype=declaration.dtype, data=data)


def _has(dtype: np.dtype[Any], value: bool | int | float) -> bool:
    """Whether a type has a number, to within its rounding."""
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return False
    if dtype.kind == "f":
        return True
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return isfinite(value) and value == int(value) and int(limits.min) <= value <= int(limits.max)
