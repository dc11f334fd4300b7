"""The learning-rate finder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dippm.errors import DippmError
from dippm.features.scaling import Scaling
from dippm.models.registry import make_network
from dippm.training.graph_batches import GraphTensors
from dippm.training.learning_rate import choose_rate, find_learning_rate

_RATES = np.geomspace(1e-6, 0.1, 100)


def test_takes_a_tenth_of_where_the_loss_is_least() -> None:
    losses = [2.0 - 0.03 * step for step in range(60)] + [0.2 + 0.2 * step for step in range(40)]
    # The running mean turns some steps after the losses.
    assert 0.1 * _RATES[59] <= choose_rate(losses) <= 0.1 * _RATES[66]


def test_a_sweep_that_blows_up_counts_as_far_as_it_went() -> None:
    losses = [1.0] * 20 + [1.0 - 0.02 * step for step in range(30)] + [2.0, 50.0, float("inf")]
    assert 0.1 * _RATES[48] <= choose_rate(losses) <= 0.1 * _RATES[52]


@pytest.mark.parametrize("losses", [[1.0] * 100, [float(step) for step in range(100)], [1.0], [float("nan")] * 30])
def test_no_descent_is_an_error(losses: list[float]) -> None:
    with pytest.raises(DippmError) as caught:
        choose_rate(losses)
    assert caught.value.code == "train.no_rate"


def test_leaves_the_network_alone_and_finds_the_same_again(samples) -> None:
    scaling = Scaling.fit(samples.node_features, samples.static_features, samples.targets)
    tensors = GraphTensors.of(samples, scaling)
    network = make_network("pmgns", hidden=8)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    rates = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            rates.append(find_learning_rate(network, tensors, np.arange(len(samples)), batch_size=8, seed=0))
    assert rates[0] == rates[1]
    assert 1e-5 < rates[0] <= 0.01
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
