from typing import Any

from dippm.costs.kernel_plan import KernelPlan
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
