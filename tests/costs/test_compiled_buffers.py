"""Bytes of a compiled model by hand: which buffers there are, and which take over another's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.graph import Graph, OpKind

SIZE = 100
BYTES = 4 * SIZE


def linear(builder: Any, x: int) -> int:
    return int(builder.node(OpKind.LINEAR, [x, builder.weight(SIZE, SIZE)], builder.N, SIZE))


def loop(builder: Any, *inputs: int) -> int:
    return int(builder.node(OpKind.ADD if len(inputs) > 1 else OpKind.TANH, list(inputs), builder.N, SIZE))


def live(graph: Graph, part: list[int] | None = None, precision: Precision = Precision.FP32) -> list[float]:
    """Vectors of FP32 alive at each node for one sample, weights and inputs apart."""
    numbers = None if part is None else np.array(part, dtype=np.int64)
    timeline = MemoryTimeline.from_workload(Workload.from_graph(graph, precision).fused(numbers))
    memory = live_memory(timeline, [1])
    inputs = BYTES * len(graph.inputs)
    return [(held - memory.weight_bytes[0] - inputs) / BYTES for held in memory.live_bytes[0].tolist()]


def test_what_stays_in_a_kernel_has_no_memory(builder: Any) -> None:
    x = linear(builder, builder.input(builder.N, SIZE))
    linear(builder, loop(builder, loop(builder, loop(builder, x))))
    # Three loops are one kernel, the last one's, and write to the place of what they read.
    assert live(builder.graph()) == [1, 1, 1, 1, 2]


def test_what_is_read_again_later_is_not_written_over(builder: Any) -> None:
    x = linear(builder, builder.input(builder.N, SIZE))
    y = linear(builder, loop(builder, x))
    linear(builder, loop(builder, y, x))
    assert live(builder.graph()) == [1, 2, 3, 2, 2]


def test_a_norm_reads_twice_and_writes_elsewhere(builder: Any) -> None:
    n = builder.N
    x = linear(builder, builder.input(n, SIZE))
    x = builder.node(OpKind.LAYER_NORM, [x, builder.weight(SIZE)], n, SIZE, axes_size=SIZE)
    linear(builder, x)
    # The last product writes where the first one did.
    assert live(builder.graph()) == [1, 2, 2]


def test_memory_that_is_taken_over_is_held_in_between(builder: Any) -> None:
    n = builder.N
    x = linear(builder, builder.input(n, SIZE))
    small = builder.node(OpKind.LINEAR, [x, builder.weight(50, SIZE)], n, 50)
    small = builder.node(OpKind.LINEAR, [small, builder.weight(50, 50)], n, 50)
    small = builder.node(OpKind.LINEAR, [small, builder.weight(50, 50)], n, 50)
    x = builder.node(OpKind.LINEAR, [small, builder.weight(SIZE, 50)], n, SIZE)
    # The first product's result is read for the last time at the second; the last one takes its place.
    assert live(builder.graph(x)) == [1, 1.5, 2, 2, 1.5]


def test_what_a_convolution_returns_is_memory_of_its_own(builder: Any) -> None:
    n, attributes = builder.N, {"kernel": (1,), "stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}

    def convolved(x: int) -> int:
        return int(builder.node(OpKind.CONV, [x, builder.weight(SIZE, SIZE, 1)], n, SIZE, 1, **attributes))

    x = convolved(builder.input(n, SIZE, 1))
    for _ in range(3):
        x = convolved(x)
    assert live(builder.graph()) == [1, 2, 2, 2]


def test_outputs_stay(builder: Any) -> None:
    x = linear(builder, builder.input(builder.N, SIZE))
    first = loop(builder, x)
    y = linear(builder, first)
    assert live(builder.graph(first, y)) == [1, 1, 2]


def test_parts_of_a_concatenation_are_written_to_their_places(builder: Any) -> None:
    n = builder.N
    parts = [loop(builder, linear(builder, builder.input(n, SIZE))) for _ in range(5)]
    whole = builder.node(OpKind.CONCAT, parts, n, 5 * SIZE)
    builder.node(OpKind.LINEAR, [whole, builder.weight(SIZE, 5 * SIZE)], n, SIZE)
    # One kernel writes all parts, so that none of them has memory of its own.
    assert live(builder.graph()) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 10, 6]


def test_what_is_kept_for_the_backward_pass_is_given_back_and_nothing_takes_its_place(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    b = linear(builder, a)
    c = linear(builder, b)
    linear(builder, linear(builder, loop(builder, c, a)))
    # a is kept and goes with the sum; what the pass's own products return takes over its own memory alone.
    assert live(builder.graph(), part=[0, 0, 0, 1, 1, 1]) == [1, 2, 3, 3, 2, 2]


def test_what_is_added_up_outside_is_held_until_the_backward_pass_ends(builder: Any) -> None:
    a = linear(builder, builder.input(builder.N, SIZE))
    gradient = linear(builder, a)
    loop(builder, gradient)
    linear(builder, linear(builder, a))
    held = live(builder.graph(), part=[0, 1, -1, 1, 1])
    assert held == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
def test_several_graphs_have_the_buffers_that_each_has(new_builder: Any, precision: Precision) -> None:
    graphs = []
    for length in (2, 4):
        builder = new_builder()
        x = builder.input(builder.N, SIZE)
        for _ in range(length):
            x = loop(builder, linear(builder, x))
        graphs.append(builder.graph())
    together = MemoryTimeline.of_each(Workload.from_sizes(GraphSizes.from_graphs(graphs), precision).fused())
    for graph, timeline in zip(graphs, together, strict=True):
        alone = MemoryTimeline.from_workload(Workload.from_graph(graph, precision).fused())
        one, other = (live_memory(each, [1, 7]).live_bytes for each in (timeline, alone))
        assert np.array_equal(one, other)
