"""Tensors and views of a step while it is made."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.training_step.step_builder import StepBuilder, count_elements
from dippm.graph import Dim, DType, OpKind, fixed_shape

N = Dim(1, 0)


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ((N, *fixed_shape(6)), (N, *fixed_shape(2, 3)), True),
        ((Dim(6, 0),), (N, *fixed_shape(6)), True),
        ((Dim(1, 1),), (N,), False),
        ((N, N), fixed_shape(4), False),  # equal at a batch of two alone
        ((), fixed_shape(1), True),
    ],
)
def test_equal_counts_are_equal_at_every_batch(first: tuple[Dim, ...], second: Any, is_equal: bool) -> None:
    assert (count_elements(first) == count_elements(second)) == is_equal


@pytest.fixture(name="step")
def _step(builder: Any) -> StepBuilder:
    builder.input(builder.N, 4, 6, dtype=DType.FLOAT16)
    return StepBuilder(builder.graph(0))


def test_views_share_the_storage_of_the_first(step: StepBuilder) -> None:
    flat = step.view(0, (N, *fixed_shape(24)))
    part = step.view(flat, (N, *fixed_shape(8)), "slice")
    assert step.base(part) == step.base(flat) == 0
    assert (step.is_whole(flat), step.is_whole(part)) == (True, False)
    assert [node.kind for node in step.nodes] == 2 * [OpKind.VIEW]
    assert step.tensors[part].alias_of == 0


def test_a_second_permutation_undoes_the_first(step: StepBuilder) -> None:
    once = step.transposed(0)
    assert step.shape(once) == (N, *fixed_shape(6, 4))
    assert step.is_permuted(once)
    assert step.is_permuted(step.view(once, (N, *fixed_shape(24))))
    assert not step.is_permuted(step.transposed(once))


def test_rows_of_the_last_dimension(step: StepBuilder) -> None:
    matrix = step.as_matrix(0)
    assert matrix is not None
    assert step.shape(matrix) == (Dim(4, 0), Dim(0, 6))
    assert step.as_matrix(matrix) == matrix
    both = step.new_tensor((N, N, *fixed_shape(6)), DType.FLOAT32)
    assert step.as_matrix(both) is None  # rows that grow with the square of the batch


def test_nodes_carry_where_they_belong(step: StepBuilder) -> None:
    step.phase, step.twin, step.scope = 1, 7, "head"
    like = step.new_like(0, dtype=DType.FLOAT32)
    step.run(OpKind.CAST, (0,), (like,), "aten.to", function="to", attributes={"size": 3})
    assert (step.phases, step.twins) == ([1], [7])
    (node,) = step.nodes
    assert (node.scope, node.source_op, node.attributes) == ("head", "aten.to", {"size": 3, "function": "to"})
    assert (step.shape(like), step.dtype(like)) == (step.shape(0), DType.FLOAT32)


def test_a_complex_number_is_two(step: StepBuilder) -> None:
    spectrum = step.new_tensor((N, *fixed_shape(3)), DType.COMPLEX64)
    assert step.count_numbers(spectrum) == (12, 30)  # 2 x 3 at batches of 2 and 5
    parts = step.view(spectrum, (N, *fixed_shape(3, 2)), "view_as_real", dtype=DType.FLOAT32)
    real = step.view(parts, (N, *fixed_shape(3)), "select")
    assert step.dtype(parts) is step.dtype(real) is DType.FLOAT32
    assert (step.is_whole(parts), step.is_whole(real)) == (True, False)
