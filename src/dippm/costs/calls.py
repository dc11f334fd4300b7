"""Calls of several graphs whose nodes lie side by side: sums over the nodes of each, and what holds for all of them.

A sum is over the nodes of its own call alone, in their order: a call gets the same alone and beside others.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

__all__ = ["accumulate_by_call", "for_nodes", "sum_by_call"]

FloatArray = npt.NDArray[np.float64]


def sum_by_call(values: FloatArray, start: IndexArray | None) -> FloatArray:
    """The sum over the nodes of each call.

    Args:
        values: A figure of each node.
        start: First node of each call, none of which is without nodes; None where all nodes are of one.

    Shapes:
        values: [..., n_nodes]; start: [G]; result: [..., G], or [...] where all are of one.
    """
    result: FloatArray = values.sum(axis=-1) if start is None else np.add.reduceat(values, start, axis=-1)
    return result


def for_nodes(values: FloatArray, start: IndexArray | None, *, count: int) -> FloatArray:
    """A figure of each call for each of its nodes; arguments as those of :func:`sum_by_call`.

    Args:
        values: A figure of each call.
        start: First node of each call.
        count: Number of all nodes.

    Shapes:
        values: [..., G], or [...] where all nodes are of one; start: [G]; result: [..., n_nodes], or [..., 1] where
        there is one call.
    """
    if start is None:
        return values[..., None]
    if len(start) == 1:
        return values
    result: FloatArray = np.repeat(values, np.diff(start, append=count), axis=-1)
    return result


def accumulate_by_call(operation: np.ufunc, values: FloatArray, start: IndexArray | None) -> FloatArray:
    """What an operation makes of each node and those of its call before it; arguments as of :func:`sum_by_call`.

    Args:
        operation: The operation, such as ``np.add``.
        values: A figure of each node.
        start: First node of each call.

    Shapes:
        values and result: [..., n_nodes]; start: [G].
    """
    result = np.empty_like(values)
    ends = [0] if start is None else start.tolist()
    for first, stop in pairwise([*ends, values.shape[-1]]):
        operation.accumulate(values[..., first:stop], axis=-1, out=result[..., first:stop])
    return result
