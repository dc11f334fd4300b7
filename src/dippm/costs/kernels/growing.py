"""Learned times of matrix products such that more rows never take less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.problems import GemmProblem

__all__ = ["grow_with_rows"]

FloatArray = npt.NDArray[np.float64]

# Rows at which the learned time is looked at.
_ROWS = np.unique(np.outer(2.0 ** np.arange(8), [1.0, 1.5]).astype(np.int64)).astype(np.float64)


def grow_with_rows(
    learned: Callable[[GemmProblem], FloatArray], problem: GemmProblem, *, is_stacked: bool = False
) -> FloatArray:
    """Learned time of matrix products, made to grow with their rows up to 192, [D, n].

    The tables have bumps at some rows, which cards that no table is of are taken to have at others: a product of 128
    rows would take half of one of 48. Half way, as a factor, between the greatest of all fewer rows and the least of
    all more of them lies what grows. It is looked for at some rows, and lies on lines between them, of logarithms. Of
    more rows than these tables are better as they are: whole models are met worse without what a last tile of rows
    takes.

    Stacks of products have one bump, at few rows, which A100s have: cuBLAS gives them tiles of 128 rows there. They
    take the least of all more rows, so that the others stay as they were measured.

    Args:
        learned: Tells the time of products on each device, in any unit.
        problem: The products.
        is_stacked: Whether they are stacks of products.

    Shapes:
        What ``learned`` tells: [D, n] of n products.
    """
    shapes, inverse = np.unique(np.stack([problem.b, problem.n, problem.k]), axis=1, return_inverse=True)
    b, n, k = (np.tile(size, len(_ROWS)) for size in shapes)
    of_rows = GemmProblem.of(b=b, m=np.repeat(_ROWS, shapes.shape[1]), n=n, k=k)
    at_rows = np.log(learned(of_rows))
    at_rows = at_rows.reshape(len(at_rows), len(_ROWS), -1)
    most = np.maximum.accumulate(at_rows, axis=1)
    least = np.minimum.accumulate(at_rows[:, ::-1], axis=1)[:, ::-1]
    growing = least if is_stacked else 0.5 * (most + least)
    place = np.interp(np.log(problem.m), np.log(_ROWS), np.arange(len(_ROWS)))
    before = np.minimum(place.astype(np.int64), len(_ROWS) - 2)
    weight, shape = place - before, inverse.ravel()
    result: FloatArray = np.exp((1.0 - weight) * growing[:, before, shape] + weight * growing[:, before + 1, shape])
    is_beyond = problem.m > _ROWS[-1]
    if is_beyond.any():
        others = GemmProblem.of(
            b=problem.b[is_beyond], m=problem.m[is_beyond], n=problem.n[is_beyond], k=problem.k[is_beyond]
        )
        result[:, is_beyond] = np.maximum(result[:, is_beyond], learned(others))
    return result
