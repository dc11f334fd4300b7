"""Loss and predictions of a network under training."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dippm.features.scaling import Scaling
from dippm.models.registry import make_network
from dippm.training.graph_batches import GraphTensors
from dippm.training.graph_network import NetworkModule, masked_huber_loss, predict_samples

NAN = float("nan")


def test_loss_by_hand() -> None:
    outputs = torch.tensor([[1.0, 5.0, 0.0], [2.0, 1.0, 9.0]])
    targets = torch.tensor([[1.5, 2.0, NAN], [NAN, 1.0, NAN]])
    # Quadratic up to 1, linear beyond: 0.125, 2.5 and 0 over three figures.
    assert masked_huber_loss(outputs, targets).item() == pytest.approx((0.125 + 2.5) / 3)


def test_absent_targets_move_nothing() -> None:
    outputs = torch.ones(2, 3, requires_grad=True)
    targets = torch.tensor([[0.0, NAN, NAN], [0.5, NAN, 0.0]])
    masked_huber_loss(outputs, targets).backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert (outputs.grad != 0).tolist() == [[True, False, False], [True, False, True]]


def test_loss_without_any_target_is_zero() -> None:
    outputs = torch.ones(2, 3, requires_grad=True)
    loss = masked_huber_loss(outputs, torch.full((2, 3), NAN))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()


def test_predictions_are_in_the_units_of_the_targets(samples) -> None:
    scaling = Scaling.fit(samples.node_features, samples.static_features, samples.targets)
    network = make_network("mlp", hidden=4)
    torch.nn.init.zeros_(network.head.output.weight)
    torch.nn.init.zeros_(network.head.output.bias)
    predicted = predict_samples(network, GraphTensors.of(samples, scaling), scaling)
    # An output of 0 is the geometric mean.
    means = [math.exp(np.nanmean(np.log(column))) for column in samples.targets.T]
    np.testing.assert_allclose(predicted, np.tile(means, (len(samples), 1)), rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 10, 11, 200])
def test_the_rate_falls_to_nearly_nothing_in_trainings_of_any_length(samples, monkeypatch, steps: int) -> None:
    scaling = Scaling.fit(samples.node_features, samples.static_features, samples.targets)
    network = make_network("mlp", hidden=4)
    module = NetworkModule(network, scaling=scaling, learning_rate=0.01, schedule="one-cycle", seed=0)
    monkeypatch.setattr(NetworkModule, "trainer", SimpleNamespace(estimated_stepping_batches=steps))
    made = module.configure_optimizers()
    assert isinstance(made, dict)
    for _ in range(steps - 1):
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert made["optimizer"].param_groups[0]["lr"] < 1e-6
