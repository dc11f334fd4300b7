"""Evaluation of small constant tensors with numpy, bounded in size and deaf to arithmetic errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dippm.frontends.onnx.program import Array
from dippm.frontends.onnx.values import Call, Value, broadcast, numel

__all__ = ["fold"]


def fold(call: Call, operands: Sequence[Value], function: Callable[..., Array]) -> Value | None:
    """Apply a numpy function to operands whose values are all known.

    Args:
        call: The operator.
        operands: Its operands, combined elementwise.
        function: Takes the operands' arrays.

    Returns:
        The result, or None where a value is unknown, trained or too large, or numpy refuses.
    """
    arrays = []
    for operand in operands:
        if not operand.is_constant:
            return None
        arrays.append(operand.data)
    if numel(broadcast(*(operand.shape for operand in operands))) > call.data_limit:
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arrays))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError, IndexError, MemoryError):
        return None
    if result.size > call.data_limit or result.dtype.hasobject:
        return None
    return call.constant(result, operands)
