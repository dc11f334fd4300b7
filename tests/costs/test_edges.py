from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.edges import Edges, last_writes, value_at
from dippm.graph import OpKind


def test_absent_inputs_are_left_out_and_places_are_kept(builder):
    x = builder.input(builder.N, 4)
    scale = builder.weight(4)
    y = builder.node(OpKind.LAYER_NORM, [x, -1, scale], builder.N, 4)
    builder.node(OpKind.ADD, [y, x], builder.N, 4)
    edges = Edges.from_graph(builder.graph())
    assert edges.read_node.tolist() == [0, 0, 1, 1]
    assert edges.read_position.tolist() == [0, 2, 0, 1]
    assert edges.read_tensor.tolist() == [x, scale, y, x]
    assert edges.write_node.tolist() == [0, 1]
    assert edges.write_tensor.tolist() == [y, y + 1]


def test_a_graph_without_nodes_has_none(builder):
    builder.input(builder.N, 4)
    edges = Edges.from_graph(builder.graph())
    assert len(edges.read_node) == len(edges.write_node) == 0


def test_places_of_each_node_and_what_it_reads_twice(builder):
    x = builder.input(builder.N, 4)
    y = builder.node(OpKind.MUL, [x, x], builder.N, 4)
    builder.node(OpKind.FILL, [], builder.N, 4)
    builder.node(OpKind.ATTENTION, [y, x, y, -1], builder.N, 4)
    edges = Edges.from_graph(builder.graph())
    assert edges.is_first.tolist() == [True, False, True, True, False]
    assert edges.input_tensor.tolist() == [x, x, y, x, y, -1]
    assert edges.input_start.tolist() == [0, 2, 2, 6]
    assert edges.output_start.tolist() == [0, 1, 2, 3]
    assert edges.first_input.tolist() == [x, -1, y]
    assert edges.first_output.tolist() == [y, y + 1, y + 2]
    assert value_at(edges.input_tensor, edges.input_start, 1).tolist() == [x, -1, x]
    assert value_at(edges.input_tensor, edges.input_start, 3, np.array([2, 0])).tolist() == [-1, -1]


def test_several_graphs_are_numbered_through(builder):
    x = builder.input(builder.N, 4)
    y = builder.node(OpKind.ATTENTION, [x, -1, x], builder.N, 4)
    first = builder.graph()
    builder.node(OpKind.RELU, [y], builder.N, 4)
    edges = Edges.from_graphs([first, builder.graph()])
    assert edges.read_node.tolist() == [0, 0, 1, 1, 2]
    assert edges.read_tensor.tolist() == [0, 0, 2, 2, 3]
    assert edges.is_first.tolist() == [True, False, True, False, True]
    assert edges.input_tensor.tolist() == [0, -1, 0, 2, -1, 2, 3]
    assert edges.write_tensor.tolist() == [1, 3, 4]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=12),
)
def test_a_read_is_of_the_last_write_by_an_earlier_node(
    writes: list[tuple[int, int]], reads: list[tuple[int, int]]
) -> None:
    writes, reads = sorted(writes, key=lambda pair: pair[0]), sorted(reads, key=lambda pair: pair[0])
    expected = [
        max((place for place, (by, what) in enumerate(writes) if what == value and by < node), default=len(writes))
        for node, value in reads
    ]
    (write_node, write), (read_node, read) = (
        np.array(pairs, dtype=np.int64).reshape(-1, 2).T for pairs in (writes, reads)
    )
    assert last_writes(write, write_node, read, read_node, values=4).tolist() == expected
