"""Classes of operators stand for all of them exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.costs.workload import Workload
from dippm.features.physical import PhysicalPlan
from dippm.graph import OpKind


def test_repeated_blocks_are_one_class_and_all_are_counted(chain: Any) -> None:
    graph = chain(layers=12)
    plan = PhysicalPlan.from_graph(graph, Precision.AMP)
    operators = len(graph.nodes) - 1
    assert plan.count.sum() == operators
    # What sees an end within two steps is a class of its own, all others are alike.
    assert sorted(plan.count) == [*[1.0] * 7, 10.0, 10.0, 11.0]


def test_views_are_in_no_class(chain: Any) -> None:
    graph = chain(layers=1)
    plan = PhysicalPlan.from_graph(graph, Precision.FP32)
    is_view = np.array([node.kind is OpKind.VIEW for node in graph.nodes])
    assert ((plan.class_of < 0) == is_view).all()


def test_operators_of_several_graphs_are_never_one_class(chain: Any) -> None:
    graphs = [chain(layers=2), chain(layers=12), chain(layers=2)]
    alone = [PhysicalPlan.from_graph(graph, Precision.AMP) for graph in graphs]
    work = Workload.from_sizes(GraphSizes.from_graphs(graphs), Precision.AMP)
    plan = PhysicalPlan.from_kernels(KernelPlan.from_workload(work))
    assert plan.class_start.tolist() == np.cumsum([0, *(len(each.node) for each in alone)]).tolist()
    for own, each in zip(plan.classes_of_graphs, alone, strict=True):
        assert plan.count[own].tolist() == each.count.tolist()
        assert plan.static[own].tolist() == each.static.tolist()
        for ours, theirs in ((plan.producers, each.producers), (plan.consumers, each.consumers)):
            heard = (ours.target >= own.start) & (ours.target < own.stop)
            assert (ours.source[heard] - own.start).tolist() == theirs.source.tolist()
            assert (ours.target[heard] - own.start).tolist() == theirs.target.tolist()
            assert ours.weight[heard].tolist() == theirs.weight.tolist()


def test_what_differs_in_one_attribute_alone_is_in_classes_of_its_own(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 8, 16, 16)
    for stride in ((1, 1), (1, 1), (2, 2)):
        weight = builder.weight(8, 8, 1, 1)
        builder.node(OpKind.CONV, [x, weight], n, 8, 16, 16, stride=stride, dilation=(1, 1), groups=1)
    plan = PhysicalPlan.from_graph(builder.graph(), Precision.FP32)
    assert plan.count.tolist() == [2.0, 1.0]


def test_what_reads_a_weight_is_not_alike_what_reads_an_input(builder: Any) -> None:
    x, given, weight = builder.input(64, 64), builder.input(64, 64), builder.weight(64, 64)
    results = [builder.node(OpKind.ADD, [x, other], 64, 64) for other in (given, weight)]
    plan = PhysicalPlan.from_graph(builder.graph(*results), Precision.FP32)
    assert plan.weight_bytes.tolist() == [0.0, 4.0 * 64 * 64]
