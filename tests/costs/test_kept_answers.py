from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt
import pytest

from dippm.costs.kept_answers import keep_answers


class _Plan:
    def __init__(self, count: int) -> None:
        self.count = count
        self.answers: dict[Hashable, object] = {}
        self.asked: list[int] = []


@keep_answers
def _count_up(plan: _Plan, step: int, *, first: int = 0) -> npt.NDArray[np.int64]:
    plan.asked.append(step)
    return np.arange(first, first + plan.count * step, step)


@keep_answers
def _both_ends(plan: _Plan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.zeros(1, dtype=np.int64), np.array([plan.count])


def test_a_question_is_worked_out_once_for_each_keeper() -> None:
    plan, other = _Plan(3), _Plan(2)
    assert _count_up(plan, 2).tolist() == [0, 2, 4]
    assert _count_up(plan, 2) is _count_up(plan, 2)
    assert _count_up(other, 2).tolist() == [0, 2]
    assert (plan.asked, other.asked) == ([2], [2])


def test_other_arguments_and_other_functions_are_other_questions() -> None:
    plan = _Plan(2)
    assert [_count_up(plan, 1).tolist(), _count_up(plan, 1, first=5).tolist()] == [[0, 1], [5, 6]]
    assert [end.tolist() for end in _both_ends(plan)] == [[0], [2]]


def test_what_is_kept_cannot_be_written_to() -> None:
    plan = _Plan(2)
    for kept in (_count_up(plan, 1), *_both_ends(plan)):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 7
