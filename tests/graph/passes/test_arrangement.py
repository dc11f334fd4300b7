from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.graph import Dim, Node, OpKind
from dippm.graph.passes.arrangement import Arrangement

N = Dim(1, 0)
SIZES = (5, 2, 4, 3)


def shape(*sizes: int | Dim) -> tuple[Dim, ...]:
    return tuple(size if isinstance(size, Dim) else Dim(0, size) for size in sizes)


def view(function: str, **attributes: object) -> Node:
    return Node(kind=OpKind.VIEW, inputs=(0,), outputs=(1,), attributes={"function": function, **attributes})


def test_directions_are_put_side_by_side() -> None:
    arrangement = Arrangement(shape(5, 2, N, 4))
    assert arrangement.follow(view("transpose", perm=(0, 2, 1, 3)), shape(5, N, 2, 4))
    assert arrangement.follow(view("reshape"), shape(5, N, 8))
    assert arrangement.is_order(((0,), (2,), (1, 3)))
    assert not arrangement.is_order(((0,), (2,), (3, 1)))


def test_a_reshape_alone_leaves_the_order() -> None:
    arrangement = Arrangement(shape(5, 2, N, 4))
    assert arrangement.follow(view("reshape"), shape(10, N, 4))
    assert arrangement.is_order(((0, 1), (2,), (3,)))


def test_dimensions_of_size_1_may_stand_anywhere() -> None:
    arrangement = Arrangement(shape(5, 1, N, 4))
    assert arrangement.follow(view("reshape"), shape(5, N, 1, 4))
    assert arrangement.follow(view("reshape"), shape(5, N, 4))
    assert arrangement.is_order(((0,), (2,), (1, 3)))


@pytest.mark.parametrize(
    ("node", "target"),
    [
        (view("reshape"), shape(N, 5, 2, 4)),
        (view("reshape"), shape(5, 2, N, 2, 2)),
        (view("reshape"), shape(5, 2, N)),
        (view("slice"), shape(5, 2, N, 4)),
        (view("transpose"), shape(5, 2, N, 4)),
        (view("transpose", perm=(0, 1)), shape(5, 2)),
        (Node(kind=OpKind.RELU, inputs=(0,), outputs=(1,)), shape(5, 2, N, 4)),
    ],
)
def test_what_moves_elements_otherwise_is_not_followed(node: Node, target: tuple[Dim, ...]) -> None:
    assert not Arrangement(shape(5, 2, N, 4)).follow(node, target)


@given(st.lists(st.permutations(range(4)), max_size=4), st.permutations(range(4)))
def test_numpy_moves_the_same_elements(perms: list[list[int]], order: list[int]) -> None:
    arrangement = Arrangement(shape(*SIZES))
    values = np.arange(np.prod(SIZES)).reshape(SIZES)
    moved = values
    for perm in perms:
        moved = moved.transpose(perm)
        assert arrangement.follow(view("transpose", perm=tuple(perm)), shape(*moved.shape))
    wanted = tuple((axis,) for axis in order)
    assert arrangement.is_order(wanted) == (
        moved.shape == values.transpose(order).shape and bool((moved == values.transpose(order)).all())
    )
