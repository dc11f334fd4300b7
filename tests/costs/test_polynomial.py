from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.polynomial import (
    as_batches,
    dimension,
    evaluate,
    is_at_most,
    is_nonzero,
    multiply,
    numel,
    pad,
    scale,
    scatter_add,
)
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Dim, GraphArrays

_SIZES = st.integers(0, 50)


def test_evaluates_each_row_at_each_batch():
    # 3 + 2N and 5N^2
    rows = np.array([[3.0, 2.0, 0.0], [0.0, 0.0, 5.0]])
    assert evaluate(rows, np.array([1.0, 10.0])).tolist() == [[5.0, 5.0], [23.0, 500.0]]


def test_constants_do_not_share_memory_with_the_polynomials():
    rows = np.array([[3.0], [4.0]])
    values = evaluate(rows, np.array([1.0, 2.0]))
    values[:] = 0.0
    assert rows.tolist() == [[3.0], [4.0]]


@given(st.lists(st.tuples(_SIZES, _SIZES), min_size=1, max_size=4), st.integers(1, 300))
def test_a_product_is_the_product_of_the_values(factors, batch):
    rows = [np.array([[float(b), float(a)]]) for a, b in factors]
    expected = 1
    for a, b in factors:
        expected *= a * batch + b
    assert evaluate(multiply(*rows), np.array([float(batch)]))[0, 0] == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(_SIZES, _SIZES), max_size=4), st.integers(1, 300))
def test_number_of_elements_is_the_product_of_the_dimensions(new_builder, shape, batch):
    builder = new_builder()
    builder.input(*(Dim(a, b) for a, b in shape))
    expected = 1
    for a, b in shape:
        expected *= a * batch + b
    elements = numel(GraphArrays.from_graph(builder.graph()))
    assert evaluate(elements, np.array([float(batch)]))[0, 0] == pytest.approx(expected, rel=1e-12)


def test_scalars_and_high_ranks_share_one_array(builder):
    builder.input()
    builder.input(2, 3, 4, 5, 6)
    builder.input(builder.N, 8)
    assert numel(GraphArrays.from_graph(builder.graph())).tolist() == [[1, 0], [720, 0], [0, 8]]


def test_a_missing_dimension_counts_one(builder):
    builder.input(builder.N, 7)
    arrays = GraphArrays.from_graph(builder.graph())
    assert dimension(arrays, np.array([0, 0, 0, -1]), [0, -1, 5, 0]).tolist() == [[0, 1], [7, 0], [1, 0], [1, 0]]


def test_elements_beyond_floats_are_refused(builder):
    builder.input(*[2**40] * 30)
    with pytest.raises(UnsupportedError, match="1e308") as caught:
        numel(GraphArrays.from_graph(builder.graph()))
    assert caught.value.code == "graph.too_large"


def test_at_most_by_every_coefficient():
    rows = np.array([[1.0, 5.0], [2.0, 2.0]])
    assert is_at_most(rows, np.array([[1.0, 6.0], [3.0, 1.0]])).tolist() == [True, False]


def test_padding_scaling_and_summing_by_row():
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert pad(rows, 3)[1].tolist() == [3.0, 4.0, 0.0]
    assert pad(rows, 1) is rows
    assert scale(rows, np.array([2.0, 0.0, -1.0])).tolist() == [[2.0, 4.0], [0.0, 0.0], [-5.0, -6.0]]
    assert scatter_add(np.array([2, 0, 2]), rows, count=3).tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]


@pytest.mark.parametrize("batches", [0, -1, [1, 0], 1.5, "8", [[1]], True])
def test_a_batch_is_a_positive_whole_number(batches):
    with pytest.raises(UsageError) as caught:
        as_batches(batches)
    assert caught.value.code == "batch.invalid"


def test_one_batch_and_several():
    assert as_batches(8).tolist() == [8.0]
    assert as_batches([1, 2]).tolist() == [1.0, 2.0]


def test_rows_of_zeros_are_told_from_others():
    assert is_nonzero(np.array([[0.0, 0.0], [0.0, -1.0], [2.0, 0.0], [-0.0, 0.0]])).tolist() == [
        False,
        True,
        True,
        False,
    ]
