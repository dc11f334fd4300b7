"""How often loops may run that are not written out to their end."""

from __future__ import annotations

import pytest

from dippm.costs.open_loops import most_runs_of, warn_of_open_loops
from dippm.graph import MOST_RUNS, Attribute


@pytest.mark.parametrize(("given", "expected"), [(1000.0, 1000.0), (3, 3.0), (0.5, 1.0), (None, 1.0), ("often", 1.0)])
def test_an_operator_runs_once_at_least(given: Attribute | None, expected: float) -> None:
    assert most_runs_of({} if given is None else {MOST_RUNS: given}) == expected


def test_only_a_loop_that_is_open_is_told_of() -> None:
    assert warn_of_open_loops(1.0) == []
    (told,) = warn_of_open_loops(1000.0)
    assert "lower bound" in told
    assert "1,000 times" in told
