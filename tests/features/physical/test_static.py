"""What an operator is does not depend on its batch."""

from __future__ import annotations

from typing import Any

from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.features.physical import PhysicalPlan


def test_gradients_are_like_what_they_are_the_gradients_of(chain: Any, at: Any, column: Any) -> None:
    training = make_training_graph(chain(layers=1), TrainingSettings())
    plan = PhysicalPlan.from_graph(training, Precision.FP32)
    sample = at(plan, 1, mode=Mode.TRAINING)
    is_gradient = column(sample, "is_norm_grad")[0] == 1
    assert is_gradient.any()
    assert (column(sample, "is_batch_norm")[0][is_gradient] == 1).all()
