from typing import Any

import numpy as np

from dippm.costs.kernel_plan import STREAM_RATES, Distinct, KernelPlan
from dippm.costs.kernels.problems import ELEMENTWISE_OPERATORS
from dippm.costs.precision import Precision
from dippm.costs.workload import Workload
from dippm.graph import OpKind


def chain(builder: Any) -> Any:
    """Three equal linear layers with ReLU, then one of another width, then softmax."""
    x = builder.input(builder.N, 64)
    for width in (64, 64, 64, 32):
        weight = builder.weight(width, 64)
        x = builder.node(OpKind.LINEAR, [x, weight], builder.N, width)
        if width == 64:
            x = builder.node(OpKind.RELU, [x], builder.N, width)
    builder.node(OpKind.SOFTMAX, [x], builder.N, 32, axes=(1,))
    return builder.graph()


def test_equal_kernels_are_planned_once(builder: Any) -> None:
    plan = KernelPlan.from_workload(Workload.from_graph(chain(builder)))
    assert len(plan.gemm.node) == 4
    assert len(plan.gemm.index) == 2
    assert plan.gemm.inverse[0] == plan.gemm.inverse[1] == plan.gemm.inverse[2] != plan.gemm.inverse[3]
    assert (len(plan.stream.node), len(plan.stream.index)) == (3, 1)


def test_a_mask_makes_another_attention_even_where_it_moves_no_more(builder: Any) -> None:
    q = builder.input(builder.N, 8, 64, 32)
    for mask in ([], [q]):
        builder.node(OpKind.ATTENTION, [q, q, q, *mask], builder.N, 8, 64, 32)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    assert len(plan.attention.node) == len(plan.attention.index) == 2


def test_softmax_takes_its_table_in_fp32_only(builder: Any) -> None:
    graph = chain(builder)
    assert KernelPlan.from_workload(Workload.from_graph(graph)).row.node.tolist() == [7]
    half = KernelPlan.from_workload(Workload.from_graph(graph, Precision.FP16))
    assert half.row.node.tolist() == []
    assert 7 in half.stream.node.tolist()


def test_casts_cost_the_host_time(builder: Any) -> None:
    graph = chain(builder)
    plain = KernelPlan.from_workload(Workload.from_graph(graph)).dispatch_us
    amp = KernelPlan.from_workload(Workload.from_graph(graph, Precision.AMP)).dispatch_us
    assert amp[0] > plain[0]
    assert amp[1] == plain[1]


def test_kernels_stand_in_the_order_in_which_they_appear() -> None:
    keys = np.array([[2.0, 0.0], [1.0, 5.0], [2.0, -0.0], [1.0, 4.0]])
    part = Distinct.of(np.array([7, 8, 9, 10]), keys)
    assert part.index.tolist() == [0, 1, 3]
    assert part.inverse.tolist() == [0, 1, 0, 2]


def test_an_operator_of_several_tensors_takes_another_table(builder: Any) -> None:
    x = builder.input(builder.N, 8)
    for kind, inputs in (
        (OpKind.MUL, [x, x]),
        (OpKind.MUL, [x, builder.weight(8)]),
        (OpKind.CLIP, [x]),
        (OpKind.CLIP, [x, builder.weight(8)]),
        (OpKind.BATCH_NORM, [x, builder.weight(8)]),
        (OpKind.REDUCE, [x]),
    ):
        builder.node(kind, inputs, builder.N, 8)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    operators, rates = tuple(ELEMENTWISE_OPERATORS), STREAM_RATES
    assert [operators[place] for place in plan.stream_operator] == ["relu", "mul", "relu", "add", "relu", "relu"]
    assert [rates[place] for place in plan.stream_group] == ["stream", "stream", "stream", "stream", "norm", "pool"]


def test_casts_that_move_as_much_are_timed_once(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    for width in (64, 64, 32):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(width, 64)], builder.N, width)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph(), Precision.AMP))
    # The input, and the weights of each layer, two of which are alike.
    assert len(plan.casts.node) == 4
    assert len(plan.casts.index) == 3
