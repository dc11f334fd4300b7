import pytest

from dippm.graph import Dim, fixed_shape
from dippm.graph.dim import changed_axis


def test_a_dimension_grows_with_the_batch() -> None:
    assert [Dim(4, 1).at(batch) for batch in (1, 2, 10)] == [5, 9, 41]


def test_dimensions_read_like_formulas() -> None:
    assert [str(dim) for dim in (Dim(0, 7), Dim(1, 0), Dim(3, 0), Dim(2, 1))] == ["7", "N", "3N", "2N+1"]


def test_fixed_shapes_ignore_the_batch() -> None:
    assert [dim.at(99) for dim in fixed_shape(3, 224)] == [3, 224]


@pytest.mark.parametrize(("after", "axis"), [((2, 1), 1), ((2, 3), None), ((1, 1), None), ((2, 3, 1), None)])
def test_the_one_axis_in_which_shapes_differ(after: tuple[int, ...], axis: int | None) -> None:
    assert changed_axis((2, 3), after) == axis
