"""Sizes as polynomials of the batch size, many at once.

Every dimension is ``a * N + b``, so each count of elements, operations or bytes is a polynomial of N. Costs are built
once per graph as rows of coefficients and then evaluated for all batch sizes in a few array operations.

Rows are as short as two or three numbers. Over such NumPy is many times slower than over columns, and by ``take`` it
picks them fifteen times as fast as by an array of indices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.errors import UnsupportedError, UsageError, quote
from dippm.graph import GraphArrays

__all__ = [
    "FloatArray",
    "as_batches",
    "dimension",
    "evaluate",
    "is_at_most",
    "is_nonzero",
    "multiply",
    "numel",
    "pad",
    "scale",
    "scatter_add",
]

FloatArray = npt.NDArray[np.float64]


def as_batches(batches: npt.ArrayLike) -> FloatArray:
    """Batch sizes as a flat array of floats.

    Raises:
        UsageError: ``batch.invalid`` where one is not a positive whole number.
    """
    given = np.atleast_1d(np.asarray(batches))
    if given.ndim != 1 or given.dtype.kind not in "iu" or (given.size and given.min() < 1):
        raise UsageError(
            f"A batch must be a whole number of at least 1. Got {quote(batches)}.",
            code="batch.invalid",
            cure="Use 1 or more.",
        )
    return given.astype(np.float64)


def dimension(arrays: GraphArrays, tensors: IndexArray, positions: int | IndexArray) -> FloatArray:
    """One dimension of each tensor; 1 where the tensor has no such dimension.

    Args:
        arrays: Sizes of the graph.
        tensors: Index of each tensor; -1 for none.
        positions: Which dimension, negative counted from the end.

    Shapes:
        tensors: [n]; result: [n, 2].
    """
    if not len(tensors):
        return np.empty((0, 2))
    absent = arrays.dimensions.shape[1] - 1
    if isinstance(positions, int) and positions >= 0:
        at: int | IndexArray = min(positions, absent)
    else:
        place = np.where(np.asarray(positions) < 0, positions + arrays.rank[tensors], positions)
        at = np.where((place < 0) | (place > absent), absent, place)
    sizes = arrays.dimensions
    place = arrays.shape[tensors] * sizes.shape[1] + at
    result: FloatArray = sizes.reshape(-1, sizes.shape[2]).take(place, axis=0)
    return result


def numel(arrays: GraphArrays) -> FloatArray:
    """Number of elements of every tensor.

    Raises:
        UnsupportedError: ``graph.too_large`` where a tensor has more elements than a float can count.

    Shapes:
        result: [T, D], D one more than the most dimensions of one tensor that grow with the batch.
    """
    per_sample, fixed = arrays.per_sample, arrays.fixed
    growing = per_sample != 0
    degree = int(growing.sum(axis=1).max(initial=0))
    result = np.zeros((len(fixed), degree + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        result[:, 0] = np.where(growing, 1, fixed).prod(axis=1, dtype=np.float64)
        for column in np.flatnonzero(growing.any(axis=0)):
            rows = growing[:, column]
            old = result[rows]
            new = old * fixed[rows, column, None]
            new[:, 1:] += old[:, :-1] * per_sample[rows, column, None]
            result[rows] = new
    if not np.isfinite(result).all():
        raise UnsupportedError("A tensor of the model has more than 1e308 elements.", code="graph.too_large")
    return result.take(arrays.shape[:-1], axis=0)


def multiply(*factors: FloatArray) -> FloatArray:
    """Product of polynomials, row by row.

    Shapes:
        factors: [n, D_i]; result: [n, 1 + sum(D_i - 1)].
    """
    result = factors[0]
    for factor in factors[1:]:
        if factor.shape[1] == 1:
            result = result * factor
            continue
        product = np.zeros((result.shape[0], result.shape[1] + factor.shape[1] - 1))
        for power in range(factor.shape[1]):
            for place in range(result.shape[1]):
                product[:, power + place] += result[:, place] * factor[:, power]
        result = product
    return result


def scale(polynomials: FloatArray, factors: FloatArray) -> FloatArray:
    """Each polynomial times a number.

    Shapes:
        polynomials: [n, D]; factors: [n]; result: [n, D].
    """
    result = np.empty(polynomials.shape)
    for place in range(polynomials.shape[1]):
        np.multiply(polynomials[:, place], factors, out=result[:, place])
    return result


def pad(polynomials: FloatArray, width: int) -> FloatArray:
    """The same polynomials with zero coefficients up to a width."""
    if width <= polynomials.shape[1]:
        return polynomials
    result = np.zeros((polynomials.shape[0], width))
    for place in range(polynomials.shape[1]):
        result[:, place] = polynomials[:, place]
    return result


def scatter_add(rows: IndexArray, polynomials: FloatArray, *, count: int) -> FloatArray:
    """Sum of the polynomials that fall on each row.

    Shapes:
        rows: [k]; polynomials: [k, D]; result: [count, D].
    """
    result = np.empty((count, polynomials.shape[1]))
    for place in range(polynomials.shape[1]):
        result[:, place] = np.bincount(rows, weights=polynomials[:, place], minlength=count)
    return result


def is_at_most(first: FloatArray, second: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether no coefficient of the first polynomial of a row is the larger one, so that no value is either.

    Shapes:
        [n, D], [n, D] -> [n].
    """
    result: npt.NDArray[np.bool_] = np.logical_and.reduce(list((first <= second).T))
    return result


def is_nonzero(polynomials: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether any coefficient of a row is not zero.

    Shapes:
        [n, D] -> [n].
    """
    result: npt.NDArray[np.bool_] = np.logical_or.reduce(list((polynomials != 0.0).T))
    return result


def evaluate(polynomials: FloatArray, batches: FloatArray) -> FloatArray:
    """Values of the polynomials at each batch size.

    Shapes:
        polynomials: [n, D]; batches: [B]; result: [B, n].
    """
    column = batches[:, None]
    width = polynomials.shape[1]
    if width == 1:
        return np.repeat(polynomials.T, len(batches), axis=0)
    result = polynomials[:, width - 1] * column
    result += polynomials[:, width - 2]
    for power in range(width - 3, -1, -1):
        result *= column
        result += polynomials[:, power]
    return result
