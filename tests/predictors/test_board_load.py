"""What a call asks of its board."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.energy import PowerModel
from dippm.devices import find_device
from dippm.graph import OpKind
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor

MODEL = PowerModel(idle=0.2, base=0.5, compute=0.3, memory=0.0)
A100 = find_device("A100-SXM4-40GB")


def test_the_same_work_in_twice_the_time_draws_less() -> None:
    peak = A100.peak_tflops["fp32"] * 1e12
    load = BoardLoad(
        busy_share=np.array([0.5]), fp32_flops=np.array([0.01 * peak * 0.5]), traffic_bytes=np.array([0.0])
    )
    power = load.power_w(MODEL, A100, np.array([10.0])), load.power_w(MODEL, A100, np.array([20.0]))
    assert power[0] / A100.board_power_w == pytest.approx(0.2 + 0.5 * (0.8 - 0.2))
    assert power[1] / A100.board_power_w == pytest.approx(0.2 + 0.5 * (0.65 - 0.2))


def test_at_the_predicted_time_it_draws_what_was_predicted(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    graph, predictor = builder.graph(), PhysicsPredictor.load()
    (prediction,) = predictor.predict(graph, batches=[4096], devices=[A100], conditions=Conditions())
    load = predictor.load_of(graph, batch=4096, device=A100, conditions=Conditions())
    power = load.power_w(Calibration.read().power, A100, np.array([prediction.latency_ms]))
    assert prediction.energy_j == pytest.approx(float(power[0]) * prediction.latency_ms / 1e3, rel=1e-6)
