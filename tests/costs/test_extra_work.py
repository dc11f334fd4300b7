"""Nodes that do more than their kernel."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.extra_work import reordered_images, rows_with_blocks
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.workload import Workload
from dippm.graph import Graph, OpKind


def _plan(graph: Graph) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(graph, Precision.FP32))


def test_a_layer_norm_has_a_block_for_each_row_and_a_softmax_has_none(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LAYER_NORM, [builder.input(n, 10, 32)], n, 10, 32, normalized_shape=(32,))
    builder.node(OpKind.SOFTMAX, [x], n, 10, 32, axis=-1)
    plan = _plan(builder.graph())
    node, rows = rows_with_blocks(plan, plan.work.at([1, 4]))
    assert node.tolist() == [0]
    assert rows.tolist() == [[10.0], [40.0]]


@pytest.mark.parametrize(("side", "moved"), [(8, [2.0 * 4 * 16 * 64, 2.0 * 4 * 16 * 64 * 4]), (1, None)])
def test_a_group_norm_reads_an_image_in_another_order_unless_it_has_one_pixel(
    side: int, moved: list[float] | None, builder: Any
) -> None:
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(
        OpKind.CONV, [builder.input(n, 3, side, side), builder.weight(16, 3, 1, 1)], n, 16, side, side, **pointwise
    )
    builder.node(OpKind.GROUP_NORM, [x], n, 16, side, side, groups=4)
    plan = _plan(builder.graph())
    node, bytes_moved = reordered_images(plan, plan.work.at([1, 4]))
    assert node.tolist() == ([] if moved is None else [1])
    assert bytes_moved.T.tolist() == ([] if moved is None else [moved])
