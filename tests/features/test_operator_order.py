"""Post-order and the edges between operators."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dippm.features.operator_order import order_operators
from dippm.graph import OpKind

_VIEWS = frozenset({OpKind.VIEW})


def _order(graph, filtered=_VIEWS):
    order = order_operators(graph, filtered=filtered)
    assert order.nodes.dtype == order.edges.dtype == np.int64
    pairs = order.nodes[order.edges]
    return order.nodes.tolist(), list(zip(*pairs.tolist(), strict=True))


def test_an_operator_comes_after_what_it_reads_input_by_input(builder):
    x = builder.input(builder.N, 4)
    left = builder.node(OpKind.RELU, [x], builder.N, 4)  # node 0
    right = builder.node(OpKind.GELU, [x], builder.N, 4)  # node 1
    deeper = builder.node(OpKind.TANH, [left], builder.N, 4)  # node 2
    builder.node(OpKind.SUB, [right, deeper], builder.N, 4)  # node 3
    nodes, edges = _order(builder.graph())
    assert nodes == [1, 0, 2, 3]
    assert edges == [(0, 2), (1, 3), (2, 3)]


def test_outputs_are_visited_in_the_order_of_the_model(builder):
    x = builder.input(builder.N, 4)
    first = builder.node(OpKind.RELU, [x], builder.N, 4)
    second = builder.node(OpKind.GELU, [x], builder.N, 4)
    assert _order(builder.graph(second, first)) == ([1, 0], [])


def test_operators_that_no_output_needs_stay_behind_the_others(builder):
    x = builder.input(builder.N, 4)
    unused = builder.node(OpKind.RELU, [x], builder.N, 4)
    builder.node(OpKind.GELU, [unused], builder.N, 4)
    used = builder.node(OpKind.TANH, [x], builder.N, 4)
    assert _order(builder.graph(used)) == ([2, 0, 1], [(0, 1)])


def test_an_edge_bypasses_views(builder):
    x = builder.input(builder.N, 4)
    y = builder.node(OpKind.RELU, [x], builder.N, 4)  # 0
    view = builder.node(OpKind.VIEW, [y], builder.N, 2, 2)  # 1
    view = builder.node(OpKind.VIEW, [view], builder.N, 4)  # 2
    a = builder.node(OpKind.GELU, [view], builder.N, 4)  # 3
    b = builder.node(OpKind.TANH, [view], builder.N, 4)  # 4
    builder.node(OpKind.ADD, [a, b], builder.N, 4)  # 5
    graph = builder.graph()
    assert _order(graph) == ([0, 3, 4, 5], [(0, 3), (0, 4), (3, 5), (4, 5)])
    assert _order(graph, frozenset())[0] == [0, 1, 2, 3, 4, 5]


def test_a_filtered_node_with_two_inputs_hands_on_both(builder):
    x = builder.input(builder.N, 4)
    a = builder.node(OpKind.RELU, [x], builder.N, 4)
    b = builder.node(OpKind.GELU, [x], builder.N, 4)
    both = builder.node(OpKind.VIEW, [b, a], builder.N, 8)
    builder.node(OpKind.TANH, [both], builder.N, 8)  # nodes 0, 1, 2 and 3
    assert _order(builder.graph()) == ([1, 0, 3], [(1, 3), (0, 3)])


def test_a_pair_has_one_edge_however_many_tensors_pass(builder):
    x = builder.input(builder.N, 4)
    y = builder.node(OpKind.RELU, [x], builder.N, 4)
    view = builder.node(OpKind.VIEW, [y], builder.N, 4)
    builder.node(OpKind.MUL, [y, view], builder.N, 4)
    builder.node(OpKind.MUL, [y, y], builder.N, 4)
    assert _order(builder.graph(3, 4)) == ([0, 2, 3], [(0, 2), (0, 3)])


def test_inputs_weights_and_absent_inputs_are_no_nodes(builder):
    x = builder.input(builder.N, 4)
    builder.node(OpKind.LINEAR, [x, builder.weight(4, 4), -1], builder.N, 4)
    assert _order(builder.graph(0, 2)) == ([0], [])


def test_a_graph_without_nodes(builder):
    builder.input(builder.N, 4)
    order = order_operators(builder.graph(), filtered=_VIEWS)
    assert order.nodes.shape == (0,)
    assert order.edges.shape == (2, 0)


def test_a_model_deeper_than_python_recurses(builder):
    y = builder.input(builder.N, 4)
    for _ in range(5000):
        y = builder.node(OpKind.RELU, [y], builder.N, 4)
    nodes, edges = _order(builder.graph())
    assert nodes == list(range(5000))
    assert edges == list(zip(range(4999), range(1, 5000), strict=True))


@st.composite
def _shapes_of_graphs(draw):
    """For each node whether it is a view, and which earlier tensors it reads (0 is the input)."""
    count = draw(st.integers(1, 12))
    return [
        (draw(st.booleans()), draw(st.lists(st.integers(0, position), min_size=1, max_size=3)))
        for position in range(count)
    ]


@given(shapes=_shapes_of_graphs(), seed=st.integers(0, 99))
def test_any_graph(new_builder, shapes, seed):
    builder = new_builder()
    builder.input(builder.N, 4)
    for is_view, reads in shapes:
        builder.node(OpKind.VIEW if is_view else OpKind.RELU, reads, builder.N, 4)
    graph = builder.graph(*(1 + np.random.default_rng(seed).permutation(len(shapes))[:2]))
    nodes, edges = _order(graph)
    assert sorted(nodes) == [position for position, (is_view, _) in enumerate(shapes) if not is_view]

    def feeding(position):
        """Operators whose results the node reads, straight or through views."""
        found = set()
        for tensor in shapes[position][1]:
            if tensor:
                found |= feeding(tensor - 1) if shapes[tensor - 1][0] else {tensor - 1}
        return found

    assert len(edges) == len(set(edges))
    assert set(edges) == {(source, target) for target in nodes for source in feeding(target)}
    place = {node: at for at, node in enumerate(nodes)}
    assert all(place[source] < place[target] for source, target in edges)
