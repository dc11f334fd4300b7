"""Messages are means over neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.features.physical import PhysicalPlan
from dippm.features.physical.links import Links, messages_of
from dippm.graph import OpKind


def test_targets_of_messages_ascend(chain: Any) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=3), Precision.FP32)
    for messages in (plan.producers, plan.consumers):
        assert (np.diff(messages.target) >= 0).all()
        sums = np.bincount(messages.target, messages.weight)
        assert sums[sums > 0] == pytest.approx(1.0)


def test_each_tensor_between_two_operators_counts_once_and_classes_are_added_up() -> None:
    class_of = np.array([0, 0, 1, 2])
    hearer, heard = np.array([[1, 3, 3, 3, 3], [2, 0, 1, 1, 2]])
    messages = messages_of(np.array([0, 2, 3]), class_of, hearer, heard)
    assert (messages.source.tolist(), messages.target.tolist()) == ([0, 1], [2, 2])
    assert messages.weight.tolist() == [0.75, 0.25]


def test_reads_go_back_through_views_to_who_wrote_them(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 8, 8)
    a = builder.node(OpKind.RELU, [x], n, 8, 8)
    turned = builder.node(OpKind.VIEW, [a], n, 8, 8, alias_of=a, function="permute")
    part = builder.node(OpKind.VIEW, [turned], n, 8, 4, alias_of=a, function="slice")
    b = builder.node(OpKind.TANH, [part], n, 8, 4)
    weight = builder.weight(4, 8)
    matrix = builder.node(OpKind.VIEW, [weight], 8, 4, alias_of=weight, function="transpose")
    builder.node(OpKind.BATCH_NORM, [b, -1, matrix, a], n, 8, 4)
    links = Links.of(GraphSizes.from_graph(builder.graph()))
    assert (links.producer.tolist(), links.consumer.tolist()) == ([0, 3, 0], [3, 5, 5])
    assert links.reads_reordered.tolist() == [False, False, False, True, False, True]
    assert links.reads_part.tolist() == [False, False, False, True, False, False]
    assert links.is_read_reordered.tolist() == [True, False, False, False, False, False]


def test_the_last_writer_before_a_read_counts(builder: Any) -> None:
    x = builder.input(builder.N, 8)
    a = builder.node(OpKind.RELU, [x], builder.N, 8)
    builder.node(OpKind.TANH, [a], builder.N, 8)
    nodes = (*builder.nodes, replace(builder.nodes[0], kind=OpKind.GELU, inputs=(a,)), builder.nodes[1])
    links = Links.of(GraphSizes.from_graph(replace(builder.graph(), nodes=nodes)))
    assert (links.producer.tolist(), links.consumer.tolist()) == ([0, 0, 2], [1, 2, 3])
