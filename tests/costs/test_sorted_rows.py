"""Which sorts take memory beside their results."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.precision import Precision
from dippm.costs.sorted_rows import is_held_in_blocks
from dippm.costs.workload import Workload
from dippm.graph import OpKind


@pytest.mark.parametrize(
    ("function", "width", "is_held"),
    [
        ("sort", 4096, True),
        ("sort", 4097, False),
        ("argsort", 8, True),
        ("unique", 8, False),
        ("topk", 8, True),
        ("topk", 100_000, True),
        ("kthvalue", 100_000, True),
    ],
)
def test_short_rows_and_searches_are_held_in_blocks(builder, function, width, is_held):
    x = builder.input(builder.N, width)
    builder.node(OpKind.SORT, [x], builder.N, width, function=function)
    graph = builder.graph()
    assert np.array_equal(is_held_in_blocks(Workload.from_graph(graph, Precision.FP32).sizes), [is_held])


def test_a_row_that_grows_with_the_batch_is_not(builder):
    x = builder.input(builder.N)
    builder.node(OpKind.SORT, [x], builder.N, function="sort")
    assert not is_held_in_blocks(Workload.from_graph(builder.graph(), Precision.FP32).sizes).any()


@pytest.mark.parametrize(("axis", "is_held"), [(1, False), (2, True)])
def test_rows_lie_along_the_dimension_that_a_sort_names(builder, axis, is_held):
    x = builder.input(builder.N, 5000, 4)
    builder.node(OpKind.SORT, [x], builder.N, 5000, 4, function="sort", axes=(axis,))
    assert is_held_in_blocks(Workload.from_graph(builder.graph(), Precision.FP32).sizes).tolist() == [is_held]
