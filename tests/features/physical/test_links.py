"""Messages are means over neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.precision import Precision
from dippm.features.physical import PhysicalPlan


def test_targets_of_messages_ascend(chain: Any) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=3), Precision.FP32)
    for messages in (plan.producers, plan.consumers):
        assert (np.diff(messages.target) >= 0).all()
        sums = np.bincount(messages.target, messages.weight)
        assert sums[sums > 0] == pytest.approx(1.0)
