"""The arithmetic of decompositions, by the book."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs import Workload
from dippm.costs.decompositions import COUNTED, FLOPS_PER_ELEMENT, count_flops, flops_of, warn_of_decomposition
from dippm.graph import OpKind


@pytest.mark.parametrize(
    ("name", "has_vectors", "cubes"),
    [
        ("cholesky", True, 1 / 3),
        ("lu", True, 2 / 3),
        ("inverse", True, 2.0),
        ("qr", False, 4 / 3),
        ("qr", True, 8 / 3),
        ("eigh", False, 4 / 3),
        ("eigh", True, 9.0),
        ("eig", True, 25.0),
        ("svd", False, 8 / 3),
        ("svd", True, 22.0),
    ],
)
def test_square_matrices_take_so_many_cubes(name: str, has_vectors: bool, cubes: float) -> None:
    assert count_flops(name, 60, 60, has_vectors=has_vectors) == pytest.approx(cubes * 60**3)


def test_it_does_not_matter_which_side_is_longer() -> None:
    for name in COUNTED:
        assert count_flops(name, 30, 20, sides=5.0) == count_flops(name, 20, 30, sides=5.0) > 0.0


def test_solving_takes_more_with_each_right_hand_side() -> None:
    one, ten = (count_flops("solve", 50, 50, sides=sides) for sides in (1.0, 10.0))
    assert ten - one == pytest.approx(9 * 2 * 50**2)


def test_a_node_has_the_operations_that_it_states(builder: Any) -> None:
    x = builder.input(builder.N, 16, 16)
    builder.node(OpKind.UNKNOWN, [x], builder.N, 16, 16, **{FLOPS_PER_ELEMENT: 2.5})
    builder.node(OpKind.UNKNOWN, [x], builder.N, 16, 16)
    flops = Workload.from_graph(builder.graph()).at([3]).flops[0]
    assert flops.tolist() == [2.5 * 3 * 256, 0.0]
    assert flops_of({}) == 0.0


def test_the_warning_says_that_the_time_is_the_least() -> None:
    assert "aten.linalg_qr is a lower bound" in warn_of_decomposition("aten.linalg_qr")
