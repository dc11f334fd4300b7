"""Learned times of matrix products whose rows are fewer than were measured, or whose times have bumps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.problems import GemmProblem

__all__ = ["grow_with_rows", "level_few_rows"]

FloatArray = npt.NDArray[np.float64]

# The fewest rows of a stack of products that was measured.
_FEWEST_STACKED = 17.0
# Rows at which the learned time is looked at.
_ROWS = np.unique(np.outer(2.0 ** np.arange(8), [1.0, 1.5]).astype(np.int64)).astype(np.float64)


def grow_with_rows(learned: Callable[[GemmProblem], FloatArray], problem: GemmProblem) -> FloatArray:
    """Learned time of linear layers, made to grow with their rows up to 192, [D, n].

    The tables have bumps at some rows, which cards that no table is of are taken to have at others: a product of 128
    rows would take half of one of 48. Half way, as a factor, between the greatest of all fewer rows and the least of
    all more of them lies what grows. It is looked for at some rows, and lies on lines between them, of logarithms. Of
    more rows than these tables are better as they are: whole models are met worse without what a last tile of rows
    takes.

    Args:
        learned: Tells the time of products on each device, in any unit.
        problem: The products.

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
    growing = 0.5 * (most + least)
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


def level_few_rows(learned: Callable[[GemmProblem], FloatArray], problem: GemmProblem) -> FloatArray:
    """Learned time of stacks of products, of fewer rows than were measured at most that of the fewest measured, [D, n].

    With more rows such stacks become faster on an A100 for a while, since cuBLAS gives few rows tiles of 128. That was
    measured; that it goes on below is what the learned time would make of it.

    Args:
        learned: Tells the time of products on each device, in any unit.
        problem: The products.

    Shapes:
        What ``learned`` tells: [D, n] of n products.
    """
    result = learned(problem)
    few = np.flatnonzero(problem.m < _FEWEST_STACKED)
    if len(few):
        sizes = {name: getattr(problem, name)[few] for name in ("b", "n", "k")}
        fewest = learned(GemmProblem.of(m=np.full(len(few), _FEWEST_STACKED), **sizes))
        result[:, few] = np.minimum(result[:, few], fewest)
    return result
