from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import numbering
from dippm.costs.numbering import is_first, number_around, number_rows, number_values

needs_compiled = pytest.mark.skipif(not numbering._IS_COMPILED, reason="dippm was installed without a C compiler")


def test_rows_are_numbered_as_they_first_appear() -> None:
    rows = np.array([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0], [0.0, 2.0]])
    assert number_rows(rows).tolist() == [0, 1, 0, 2]
    # Of a table in another order of memory as well.
    assert number_rows(np.asfortranarray(rows)).tolist() == [0, 1, 0, 2]
    assert number_rows(rows[:0]).tolist() == []


@pytest.mark.parametrize("is_compiled", [pytest.param(True, marks=needs_compiled), False])
@given(
    colours=st.lists(st.integers(0, 2), min_size=3, max_size=9),
    edges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=80),
)
def test_nodes_are_alike_where_all_around_them_are(
    is_compiled: bool, colours: list[int], edges: list[tuple[int, int]]
) -> None:
    around = [
        (
            colour,
            sorted(colours[source] for source, target in edges if target == node),
            sorted(colours[target] for source, target in edges if source == node),
        )
        for node, colour in enumerate(colours)
    ]
    distinct = [own for place, own in enumerate(around) if own not in around[:place]]
    given_edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "_IS_COMPILED", is_compiled)
        numbers = number_around(np.array(colours, dtype=np.int64), *given_edges.T)
    assert numbers.tolist() == [distinct.index(own) for own in around]


@needs_compiled
@pytest.mark.parametrize(("source", "target"), [([0, 3], [1, 1]), ([0], [-1]), ([0, 1], [1])])
def test_edges_between_other_nodes_are_refused(source: list[int], target: list[int]) -> None:
    colours, *edges = (np.array(each, dtype=np.int64) for each in ([0, 1, 0], source, target))
    with pytest.raises(ValueError, match="a source and a target"):
        numbering._numbering.number_around(colours, *edges, np.empty(3, dtype=np.int64))


@given(st.lists(st.integers(-3, 3)))
def test_what_appears_first_is_found_by_the_numbers(values: list[int]) -> None:
    numbers = number_values(np.array(values, dtype=np.int64))
    firsts = [values.index(value) == place for place, value in enumerate(values)]
    assert is_first(numbers).tolist() == firsts
    assert numbers.tolist() == [list(dict.fromkeys(values)).index(value) for value in values]


@needs_compiled
@given(st.lists(st.binary(max_size=20)))
def test_both_languages_number_alike(pieces: list[bytes]) -> None:
    content = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    stops = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    in_c, in_python = np.empty((2, len(pieces)), dtype=np.int64)
    numbering._numbering.number(content, stops, in_c)
    numbering._fill(content, stops, in_python)
    assert in_c.tolist() == in_python.tolist()


@needs_compiled
@pytest.mark.parametrize("stops", [[1, 5], [3, 2], [-1, 2], [2]])
def test_stops_outside_the_content_are_refused(stops: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend within the content"):
        numbering._numbering.number(b"1234", np.array(stops, dtype=np.int64), np.empty(2, dtype=np.int64))


@needs_compiled
def test_only_arrays_of_64_bit_integers_are_taken_for_stops() -> None:
    good = np.array([4], dtype=np.int64)
    for stops, numbers in ((good.astype(np.int32), good), (good, good.astype(np.float64)), (b"12345678", good)):
        with pytest.raises(TypeError):
            numbering._numbering.number(b"1234", stops, numbers)
    with pytest.raises(ValueError, match="must ascend"):
        numbering._numbering.number(b"1234", good, good)
    fixed = good.copy()
    fixed.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        numbering._numbering.number(b"1234", good, fixed)
