from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.sizes import GraphSizes, SizeTable
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    n = builder.N
    x = builder.input(n, 8)
    weight = builder.weight(4, 8)
    y = builder.node(OpKind.LINEAR, [x, weight], n, 4)
    builder.node(OpKind.CONCAT, [y, -1, x], n, 12)
    return builder.graph()


def test_elements_are_polynomials_and_an_absent_tensor_counts_one(graph: Graph) -> None:
    sizes = GraphSizes.from_graph(graph)
    assert sizes.elements[:, :2].tolist() == [[0, 8], [32, 0], [0, 4], [0, 12], [1, 0]]
    assert sizes.elements[-1].sum() == 1


def test_tensors_by_their_place(graph: Graph) -> None:
    sizes = GraphSizes.from_graph(graph)
    nodes = np.array([0, 1])
    assert [sizes.inputs(nodes, place).tolist() for place in range(4)] == [[0, 2], [1, -1], [-1, 0], [-1, -1]]
    assert sizes.outputs(nodes).tolist() == [2, 3]
    assert sizes.rank(np.array([0, 1, -1])).tolist() == [2, 2, 0]
    assert sizes.dimension(np.array([1, 0]), 1)[:, 0].tolist() == [8, 8]


def test_values_of_sizes_of_different_degrees() -> None:
    nodes = np.array([3, 5, 9])
    linear = np.array([[1.0, 2.0], [0.0, 1.0], [5.0, 0.0]])  # 1 + 2 N, N, 5
    square = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])  # N^2, 1, N + N^2
    table = SizeTable.of(nodes, [linear, square])
    assert table.polynomials.shape == (6, 3)
    first, second = table.at(np.array([1.0, 4.0]))
    assert first.tolist() == [[3, 1, 5], [9, 4, 5]]
    assert second.tolist() == [[1, 1, 2], [16, 1, 20]]


def test_kinds_of_all_nodes_at_once(graph: Graph) -> None:
    sizes = GraphSizes.from_graph(graph)
    assert sizes.is_kind(OpKind.LINEAR).tolist() == [True, False]
    assert sizes.is_kind(OpKind.CONCAT, OpKind.LINEAR).tolist() == [True, True]
    assert sizes.is_kind(OpKind.RELU).tolist() == [False, False]


def test_equal_attributes_are_read_once(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 8)
    for groups in (1, 2, 1, 4, 2):
        x = builder.node(OpKind.RELU, [x], n, 8, groups=groups, size=(3, groups))
    sizes, read = GraphSizes.from_graphs([builder.graph(), builder.graph()]), []

    def read_groups(attributes: Any) -> int:
        read.append(attributes["groups"])
        return int(attributes["groups"])

    assert sizes.read_attributes(np.array([0, 4, 6, 2, 1]), read_groups).tolist() == [1, 2, 2, 1, 2]
    assert read == [1, 2]
    of_several = sizes.read_attributes(np.array([3, 0]), lambda attributes: attributes["size"], numbers=2)
    assert of_several.tolist() == [[3, 4], [3, 1]]
    nothing = np.zeros(0, dtype=np.int64)
    assert sizes.read_attributes(nothing, read_groups).shape == (0,)
    assert sizes.read_attributes(nothing, read_groups, numbers=2).shape == (0, 2)
