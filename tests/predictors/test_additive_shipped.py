"""The shipped artefact: what it claims, its size, and that it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.features.physical import PhysicalPlan
from dippm.graph import Graph, OpKind
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import REGIMES, Regime, manifest_path

_LARGEST_BYTES = 5_000_000


@pytest.fixture(name="network")
def _network(builder: Any) -> Graph:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 3, 56, 56)
    for channels_in, channels in ((3, 64), (64, 64), (64, 128)):
        weights = [builder.weight(channels, channels_in, 3, 3)]
        x = builder.node(OpKind.CONV, [x, *weights], n, channels, 56, 56, **square)
        norm = [builder.weight(channels), builder.weight(channels)]
        x = builder.node(OpKind.BATCH_NORM, [x, *norm], n, channels, 56, 56, axes_size=channels)
        x = builder.node(OpKind.RELU, [x], n, channels, 56, 56)
    x = builder.node(OpKind.REDUCE, [x], n, 128, function="mean", axes=(2, 3))
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 128)], n, 10))


def test_the_artefacts_are_small_together() -> None:
    paths = [manifest_path(regime) for regime in REGIMES]
    assert sum(path.stat().st_size + path.with_suffix(".safetensors").stat().st_size for path in paths) < _LARGEST_BYTES


@pytest.mark.parametrize(
    ("regime", "devices", "bound"),
    [
        (REGIMES[0], ["GeForce RTX 3090", "GeForce RTX 4090"], 3.0),
        (REGIMES[1], ["GeForce RTX 3090"], 4.5),
        (REGIMES[2], ["GeForce RTX 4090"], 10.0),
    ],
    ids=str,
)
def test_an_artefact_says_how_good_it_is(regime: Regime, devices: list[str], bound: float) -> None:
    artefact = AdditivePredictor.load().artefact(_conditions(regime))
    assert artefact.measured["devices"] == devices
    assert artefact.test["mape_percent"] < bound
    assert 85.0 <= artefact.test["interval_coverage_percent"] <= 97.0
    assert list(artefact.half_widths) == sorted(artefact.half_widths)
    assert artefact.provenance["command"].startswith(
        f"python -m dippm.training.additive --mode {regime.mode} --runtime {regime.runtime}"
    )


def test_what_is_kept_of_a_graph_belongs_to_one_regime(network: Graph) -> None:
    """A graph that was asked for eagerly is answered compiled as if it were new, and the other way round."""
    card = find_device("RTX 4090")
    fresh, used = (AdditivePredictor.load.__wrapped__() for _ in range(2))
    eager, compiled = _conditions(REGIMES[0]), _conditions(REGIMES[2])
    used.predict_ms(network, [256], card, eager)
    assert used.predict_ms(network, [256], card, compiled) == fresh.predict_ms(network, [256], card, compiled)
    assert used.predict_ms(network, [256], card, eager) == fresh.predict_ms(network, [256], card, eager)


def test_what_is_unlike_the_labels_has_a_wider_interval(network: Graph) -> None:
    """Labels are of large batches on two cards: a single image is unlike them, and so is a card three times as fast."""
    predictor = AdditivePredictor.load()

    def half_width(batch: int, device: str) -> float:
        found = predictor.break_down(network, [batch], find_device(device), _conditions(REGIMES[0])).half_width
        return float(found[0])

    known = half_width(512, "RTX 4090")
    assert half_width(1, "RTX 4090") > 2 * known
    assert half_width(512, "B200") > known


def _conditions(regime: Regime) -> Conditions:
    return Conditions(precision=Precision.AMP, mode=regime.mode, runtime=regime.runtime)


@pytest.mark.parametrize("device", ["RTX 3090", "A100", "T4", "H100"])
def test_a_training_step_stays_near_the_plain_sum_on_any_device(network: Graph, device: str) -> None:
    """What was never measured must stay sane."""
    settings = TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.AMP)
    step = make_training_graph(network, settings)
    for layout in Layout:
        conditions = Conditions(precision=Precision.AMP, mode=Mode.TRAINING, layout=layout)
        batches = [16, 32, 64, 128, 256, 512]
        predictor = AdditivePredictor.load()
        times = predictor.break_down(step, batches, find_device(device), conditions)
        assert np.isfinite(times.latency_ms).all()
        assert (times.latency_ms[1:] > 0.97 * times.latency_ms[:-1]).all()
        plan = PhysicalPlan.from_graph(step, Precision.AMP)
        rates = predictor.artefact(conditions).rates
        plain = plan.at(
            batches, device=find_device(device), conditions=conditions, rates=rates, kernels=load_kernel_model()
        )
        ratio = times.busy_ms.sum(axis=1) / (plain.kernel_ms @ plan.count)
        assert (ratio > 1 / 3).all()
        assert (ratio < 3).all()
