"""What a backward pass makes again, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dippm.costs.recomputation import Recomputation
from dippm.costs.sizes import GraphSizes
from dippm.graph import Graph, Node, OpKind

SIZE = 64


def linear(builder: Any, x: int) -> int:
    return int(builder.node(OpKind.LINEAR, [x, builder.weight(SIZE, SIZE)], builder.N, SIZE))


def loop(builder: Any, *inputs: int, size: int = SIZE) -> int:
    return int(builder.node(OpKind.ADD if len(inputs) > 1 else OpKind.TANH, list(inputs), builder.N, size))


def decide(
    graph: Graph, forward: int, *, reach: int | None = None, dear: Sequence[int] = ()
) -> tuple[dict[tuple[int, int], int | None], list[tuple[int, int]]]:
    """What each read of a value of the forward pass reads instead, and what is read beside; tensors by node.

    Args:
        graph: A graph without views.
        forward: How many of its nodes are of the forward pass.
        reach: See :meth:`Recomputation.of`.
        dear: Loops that are never made again.
    """
    sizes = GraphSizes.from_graph(graph)
    edges = sizes.edges
    maker = {tensor: position for position, node in enumerate(graph.nodes) for tensor in node.outputs}
    writer = np.array([maker.get(tensor, -1) for tensor in edges.read_tensor.tolist()])
    is_loop = ~sizes.is_kind(OpKind.LINEAR)
    is_cheap = is_loop.copy()
    is_cheap[list(dear)] = False
    again = Recomputation.of(
        sizes,
        part=(np.arange(len(graph.nodes)) >= forward).astype(np.int64),
        is_loop=is_loop,
        is_cheap=is_cheap,
        writer=writer,
        owner=edges.read_tensor,
        element_bytes=np.full(len(writer), 4.0),
        reach=reach,
    )
    instead = {
        (int(edges.read_node[edge]), int(edges.read_tensor[edge])): None
        if source < 0
        else int(edges.read_tensor[source])
        for edge, source in enumerate(again.source.tolist())
        if source != edge
    }
    return instead, [(storage, reader) for (_, storage), reader, _ in again.kept]


def test_what_can_be_made_from_what_is_kept_anyway_is_not_kept(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = loop(builder, a)
    c = linear(builder, b)
    linear(builder, a)
    loop(builder, c, b)
    # The second loop reads what the first one made: it makes that again from what the product before it reads.
    assert decide(builder.graph(), 3) == ({(4, b): a}, [])


def test_what_costs_as_much_to_make_as_to_keep_is_kept(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = loop(builder, a)
    loop(builder, linear(builder, b), b)
    assert decide(builder.graph(), 3) == ({}, [])


def test_what_none_but_loops_read_is_made_again_from_what_is_as_large_and_written_anyway(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = loop(builder, a)
    loop(builder, b)
    graph = builder.graph()
    assert decide(graph, 2) == ({(2, b): a}, [])


def test_what_is_made_of_more_is_made_again_from_all_of_it(builder: Any) -> None:
    n = builder.N
    a, small = linear(builder, builder.input(n, SIZE)), linear(builder, builder.input(n, SIZE))
    b = loop(builder, a, small)
    linear(builder, a)
    linear(builder, small)
    loop(builder, b)
    assert decide(builder.graph(), 3) == ({(5, b): a}, [(small, 5)])


def test_a_value_too_far_from_the_backward_pass_is_not_made_again(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = a
    for _ in range(5):
        b = loop(builder, b)
    linear(builder, a)
    loop(builder, b)
    assert decide(builder.graph(), 6) == ({(7, b): a}, [])
    # The first of the five is five operators away.
    assert decide(builder.graph(), 6, reach=5) == ({(7, b): a}, [])
    assert decide(builder.graph(), 6, reach=4) == ({}, [])


def test_reductions_are_kept_and_what_follows_them_is_made_again(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = loop(builder, a)
    c = loop(builder, b)
    linear(builder, a)
    loop(builder, b)
    loop(builder, c)
    graph = builder.graph()
    assert decide(graph, 3) == ({(4, b): a, (5, c): a}, [])
    assert decide(graph, 3, dear=[1]) == ({(5, c): b}, [])


def test_random_numbers_are_drawn_again(builder: Any) -> None:
    n = builder.N
    x = loop(builder, linear(builder, builder.input(n, SIZE)))
    y, mask = builder.tensor(n, SIZE), builder.tensor(n, SIZE)
    builder.nodes.append(Node(kind=OpKind.DROPOUT, inputs=(x,), outputs=(y, mask)))
    linear(builder, y)
    loop(builder, mask)
    assert decide(builder.graph(), 3) == ({(4, mask): None}, [])
