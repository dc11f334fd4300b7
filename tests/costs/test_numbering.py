from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.numbering import number_rows, number_stretches


def test_rows_are_numbered_as_they_first_appear() -> None:
    rows = np.array([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0], [0.0, 2.0]])
    assert number_rows(rows).tolist() == [0, 1, 0, 2]
    # Of a table in another order of memory as well.
    assert number_rows(np.asfortranarray(rows)).tolist() == [0, 1, 0, 2]
    assert number_rows(rows[:0]).tolist() == []


@given(st.lists(st.lists(st.integers(0, 2), max_size=3)))
def test_stretches_are_equal_where_all_their_values_are(stretches: list[list[int]]) -> None:
    values = np.array([value for stretch in stretches for value in stretch], dtype=np.int64)
    stops = np.cumsum([len(stretch) for stretch in stretches], dtype=np.int64)
    distinct = list(dict.fromkeys(map(tuple, stretches)))
    assert number_stretches(values, stops).tolist() == [distinct.index(tuple(stretch)) for stretch in stretches]
