"""What torch.compile runs as one kernel, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.costs.workload import Workload
from dippm.graph import DType, Graph, OpKind

CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
IMAGE = (8, 4, 4)
ELEMENTS = 8 * 4 * 4


def fused(graph: Graph, precision: Precision = Precision.FP32) -> Workload:
    return Workload.from_graph(graph, precision).fused()


def kernels(graph: Graph, precision: Precision = Precision.FP32) -> list[int]:
    fusion = fused(graph, precision).fusion
    assert fusion is not None
    return [int(kernel) for kernel in fusion.kernel]


def moved(graph: Graph, precision: Precision = Precision.FP32) -> list[tuple[float, float]]:
    """Elements of FP32 that each node reads and writes for one sample, its weights apart."""
    at = fused(graph, precision).at([1])
    return list(zip((at.bytes_read[0] / 4).tolist(), (at.bytes_written[0] / 4).tolist(), strict=True))


def conv(builder: Any, x: int) -> int:
    return int(builder.node(OpKind.CONV, [x, builder.weight(8, 8, 1, 1)], builder.N, *IMAGE, **CONV))


def image(builder: Any) -> int:
    return int(builder.input(builder.N, *IMAGE))


def test_a_residual_block_is_its_convolutions_and_a_loop_behind_each(builder: Any) -> None:
    """The shortcut's norm waits for the sum, though it could run before the other branch."""
    n = builder.N
    x = builder.node(OpKind.RELU, [conv(builder, image(builder))], n, *IMAGE)
    y = builder.node(OpKind.BATCH_NORM, [conv(builder, x), builder.weight(8)], n, *IMAGE)
    y = builder.node(OpKind.RELU, [y], n, *IMAGE)
    y = builder.node(OpKind.BATCH_NORM, [conv(builder, y), builder.weight(8)], n, *IMAGE)
    s = builder.node(OpKind.BATCH_NORM, [conv(builder, x), builder.weight(8)], n, *IMAGE)
    y = builder.node(OpKind.ADD, [y, s], n, *IMAGE)
    y = builder.node(OpKind.RELU, [y], n, *IMAGE)
    conv(builder, y)
    graph = builder.graph()
    assert kernels(graph) == [0, 1, 2, 4, 4, 5, 10, 7, 10, 10, 10, 11]
    of_loops = [pair for node, pair in zip(graph.nodes, moved(graph), strict=True) if node.kind is not OpKind.CONV]
    assert of_loops == [
        (ELEMENTS, ELEMENTS),  # The first rectifier.
        (ELEMENTS + 8, 0.0),  # The first norm: what follows has its result.
        (0.0, ELEMENTS),
        (ELEMENTS + 8, 0.0),  # The second one and the shortcut's read a convolution each.
        (ELEMENTS + 8, 0.0),
        (0.0, 0.0),
        (0.0, ELEMENTS),
    ]


def test_what_several_kernels_read_is_written_once_and_read_by_each(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.RELU, [conv(builder, image(builder))], n, *IMAGE)
    y = builder.node(OpKind.SIGMOID, [conv(builder, x)], n, *IMAGE)
    builder.node(OpKind.MUL, [x, y], n, *IMAGE)
    graph = builder.graph()
    assert kernels(graph) == [0, 1, 2, 4, 4]
    assert moved(graph)[1] == (ELEMENTS, ELEMENTS)
    assert moved(graph)[3:] == [(ELEMENTS, 0.0), (ELEMENTS, ELEMENTS)]


def test_a_norm_joins_the_sum_before_it_and_writes_what_a_product_reads(builder: Any) -> None:
    """Under autocast: the stream of a transformer stays in FP32, its norm is written in 16 bits, and none is cast."""
    n = builder.N
    x = builder.input(n, 16, 32)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(32, 32)], n, 16, 32)
    x = builder.node(OpKind.ADD, [x, y], n, 16, 32)
    y = builder.node(OpKind.LAYER_NORM, [x, builder.weight(32)], n, 16, 32, axes_size=32)
    y = builder.node(OpKind.LINEAR, [y, builder.weight(32, 32)], n, 16, 32)
    builder.node(OpKind.ADD, [x, y], n, 16, 32)
    graph = builder.graph()
    assert kernels(graph, Precision.AMP) == [0, 2, 2, 3, 4]
    elements = 16 * 32
    assert moved(graph, Precision.AMP)[1:3] == [(1.5 * elements, elements), (32, 0.5 * elements)]
    # What is left to cast is the input and the two weights.
    casts = fused(graph, Precision.AMP).types.casts
    assert casts.node.tolist() == [0, 0, 3]


def test_two_reductions_over_different_stretches_are_two_kernels(builder: Any) -> None:
    n = builder.N
    x = conv(builder, image(builder))
    x = builder.node(OpKind.REDUCE, [x], n, 8, 4, axes=(3,), function="mean")
    x = builder.node(OpKind.UNARY, [x], n, 8, 4, function="exp")
    builder.node(OpKind.REDUCE, [x], n, 8, axes=(2,), function="mean")
    assert kernels(builder.graph()) == [0, 1, 3, 3]


def test_a_softmax_and_what_uses_it_on_the_same_rows_are_one(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16, 32), builder.weight(32, 32)], n, 16, 32)
    x = builder.node(OpKind.MUL, [x], n, 16, 32)
    x = builder.node(OpKind.SOFTMAX, [x], n, 16, 32, axes=(2,))
    builder.node(OpKind.MUL, [x], n, 16, 32)
    assert kernels(builder.graph()) == [0, 3, 3, 3]


def test_windows_find_their_image_in_memory(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.RELU, [conv(builder, image(builder))], n, *IMAGE)
    x = builder.node(OpKind.MAX_POOL, [x], n, 8, 2, 2, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
    builder.node(OpKind.RELU, [x], n, 8, 2, 2)
    assert kernels(builder.graph()) == [0, 1, 3, 3]


def test_loops_write_their_part_of_a_concatenation(builder: Any) -> None:
    n = builder.N
    x = image(builder)
    parts = [builder.node(OpKind.RELU, [conv(builder, x)], n, *IMAGE) for _ in range(2)]
    whole = builder.node(OpKind.CONCAT, [*parts, conv(builder, x)], n, 24, 4, 4)
    builder.node(OpKind.CONV, [whole, builder.weight(8, 24, 1, 1)], n, *IMAGE, **CONV)
    pairs = moved(builder.graph())
    # What a library has written is copied.
    assert pairs[1][0] + pairs[3][0] + pairs[5][0] == 3 * ELEMENTS
    assert pairs[1][1] + pairs[3][1] + pairs[5][1] == 3 * ELEMENTS


def concatenated(builder: Any, parts: int) -> list[tuple[float, float]]:
    """What a concatenation of an image and what convolutions made, a norm and a rectifier behind it move."""
    n, channels = builder.N, 8 * parts
    x = image(builder)
    made = [conv(builder, x) for _ in range(parts - 1)]
    x = builder.node(OpKind.CONCAT, [x, *made], n, channels, 4, 4)
    x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(channels)], n, channels, 4, 4)
    builder.node(OpKind.RELU, [x], n, channels, 4, 4)
    return moved(builder.graph())[parts - 1 :]


def test_what_reads_a_concatenation_of_few_parts_picks_from_them(builder: Any) -> None:
    assert concatenated(builder, 4) == [(4 * ELEMENTS, 0.0), (32, 0.0), (0.0, 4 * ELEMENTS)]


def test_a_concatenation_of_many_parts_is_built(builder: Any) -> None:
    assert concatenated(builder, 5) == [(5 * ELEMENTS, 5 * ELEMENTS), (5 * ELEMENTS + 40, 0.0), (0.0, 5 * ELEMENTS)]


def test_a_part_that_another_kernel_made_is_read_where_the_whole_is_not_built(builder: Any) -> None:
    """As in DenseNet: the first part was written for an earlier convolution."""
    n = builder.N
    first = builder.node(OpKind.RELU, [conv(builder, image(builder))], n, *IMAGE)
    x = builder.node(OpKind.CONCAT, [first, conv(builder, first)], n, 16, 4, 4)
    builder.node(OpKind.RELU, [x], n, 16, 4, 4)
    assert moved(builder.graph())[1] == (ELEMENTS, ELEMENTS)
    assert moved(builder.graph())[3:] == [(2 * ELEMENTS, 0.0), (0.0, 2 * ELEMENTS)]


def test_views_are_followed_and_launch_nothing(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16, 32), builder.weight(32, 32)], n, 16, 32)
    x = builder.node(OpKind.GELU, [x], n, 16, 32)
    view = builder.node(OpKind.VIEW, [x], n, 512, alias_of=x)
    builder.node(OpKind.ADD, [view, builder.weight(512)], n, 512)
    assert kernels(builder.graph()) == [0, 3, -1, 3]
    assert moved(builder.graph())[1:] == [(512, 0.0), (0.0, 0.0), (512, 512)]


def test_a_model_output_is_written_wherever_it_is_made(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.RELU, [conv(builder, image(builder))], n, *IMAGE)
    y = builder.node(OpKind.TANH, [x], n, *IMAGE)
    assert moved(builder.graph(x, y))[1:] == [(ELEMENTS, ELEMENTS), (0.0, ELEMENTS)]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP, Precision.BF16])
def test_fusion_never_adds_work(builder: Any, precision: Precision) -> None:
    n = builder.N
    x = builder.input(n, 16, 32)
    for _ in range(3):
        y = builder.node(OpKind.LAYER_NORM, [x, builder.weight(32)], n, 16, 32, axes_size=32)
        y = builder.node(OpKind.LINEAR, [y, builder.weight(32, 32)], n, 16, 32)
        y = builder.node(OpKind.SOFTMAX, [y], n, 16, 32, axes=(2,))
        x = builder.node(OpKind.ADD, [x, y], n, 16, 32)
    work = Workload.from_graph(builder.graph(), precision)
    own, less = work.at([1, 8]), work.fused().at([1, 8])
    assert np.array_equal(own.flops, less.flops)
    assert np.array_equal(own.macs, less.macs)
    read, written = (each.bytes_read.sum(axis=1) + each.casts.bytes_read.sum(axis=1) for each in (own, less))
    assert (written < read).all()
    assert KernelPlan.from_workload(work).is_launched.all()
    plan = KernelPlan.from_workload(work.fused())
    # Three products, a loop before the first and one behind each.
    assert plan.is_launched.sum() == 7
    assert plan.dispatch_us[~plan.is_launched].sum() == 0.0


def test_graphs_that_are_laid_out_together_fuse_as_each_does(new_builder: Any) -> None:
    builders = [new_builder(), new_builder()]
    for each in builders:
        x = each.node(OpKind.RELU, [conv(each, image(each))], each.N, *IMAGE)
        each.node(OpKind.CAST, [x], each.N, *IMAGE, dtype=DType.FLOAT16)
    graphs = [each.graph() for each in builders]
    together = Workload.from_sizes(GraphSizes.from_graphs(graphs), Precision.FP32).fused()
    alone = [fused(graph) for graph in graphs]
    assert np.array_equal(
        together.at([4]).bytes_written, np.concatenate([work.at([4]).bytes_written for work in alone], axis=1)
    )


@pytest.mark.parametrize("keeps_casts", [True, False])
def test_a_weight_of_several_layers_is_cast_once(builder: Any, keeps_casts: bool) -> None:
    """With autocast's cache or without it: a compiler finds casts that are the same."""
    n, tied = builder.N, builder.weight(8, 8)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 8), tied], n, 8)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], n, 8)
    builder.node(OpKind.LINEAR, [x, tied], n, 8)
    work = Workload.from_graph(builder.graph(), Precision.AMP, keeps_casts=keeps_casts)
    assert work.types.casts.node.tolist() == ([0, 0, 1] if keeps_casts else [0, 0, 1, 2])
    assert work.fused().types.casts.node.tolist() == [0, 0, 1]
