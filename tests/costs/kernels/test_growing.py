"""Times that grow with the rows of a product."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.kernels.growing import grow_with_rows, level_few_rows
from dippm.costs.kernels.problems import GemmProblem


def _bumpy(problem: GemmProblem) -> np.ndarray:
    """Rows, but twice as many from 24 to 64 of them, on two devices of which one is slower."""
    time = problem.m * problem.n * np.where((problem.m >= 24) & (problem.m <= 64), 2.0, 1.0)
    return np.stack([time, 3.0 * time])


def test_bumps_are_levelled_half_way_and_nothing_falls() -> None:
    rows = np.arange(1, 400, dtype=np.float64)
    found = grow_with_rows(_bumpy, GemmProblem.of(m=rows, n=10, k=4))
    assert np.all(np.diff(found[0, :192]) >= 0.0)
    assert found[1] == pytest.approx(3.0 * found[0])
    # Far from the bump, and beyond what is looked at, it is what was learned.
    for row in (1, 4, 16, 192, 300):
        assert found[0, row - 1] == pytest.approx(10.0 * row)
    # The greatest before is 128, the least behind is 96.
    assert found[0, 95] == pytest.approx(10.0 * np.sqrt(128 * 96))


def test_stacks_of_few_rows_take_no_longer_than_the_fewest_measured() -> None:
    def falling(problem: GemmProblem) -> np.ndarray:
        return np.stack([1e3 / problem.m * problem.b, problem.m * problem.b])

    rows = np.array([1.0, 16.0, 17.0, 33.0, 300.0])
    found = level_few_rows(falling, GemmProblem.of(b=2, m=rows, n=10, k=4))
    assert found[0] == pytest.approx([2e3 / 17, 2e3 / 17, 2e3 / 17, 2e3 / 33, 2e3 / 300])
    assert found[1] == pytest.approx(2 * rows)


def test_shapes_do_not_mix() -> None:
    both = grow_with_rows(_bumpy, GemmProblem.of(m=[48.0, 48.0], n=[10.0, 20.0], k=4))
    alone = [grow_with_rows(_bumpy, GemmProblem.of(m=48.0, n=size, k=4))[:, 0] for size in (10.0, 20.0)]
    assert pytest.approx(np.array(alone)) == both.T
