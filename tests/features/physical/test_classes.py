"""Classes of operators stand for all of them exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from dippm.costs.precision import Precision
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
