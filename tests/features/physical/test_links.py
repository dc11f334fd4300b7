"""Messages are means over neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.precision import Precision
from dippm.features.physical import PhysicalPlan
from dippm.features.physical.links import messages_of


def test_targets_of_messages_ascend(chain: Any) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=3), Precision.FP32)
    for messages in (plan.producers, plan.consumers):
        assert (np.diff(messages.target) >= 0).all()
        sums = np.bincount(messages.target, messages.weight)
        assert sums[sums > 0] == pytest.approx(1.0)


def test_each_tensor_between_two_operators_counts_once_and_classes_are_added_up() -> None:
    class_of = np.array([0, 0, 1, 2])
    messages = messages_of(np.array([0, 2, 3]), class_of, [[], [2], [], [0, 1, 1, 2]])
    assert (messages.source.tolist(), messages.target.tolist()) == ([0, 1], [2, 2])
    assert messages.weight.tolist() == [0.75, 0.25]
