"""What physics says of any two answers: more work never costs less, a better device is never slower."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.api.named_models import SHIPPED_FOLDER
from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.datasets.graph_cache import GraphCache
from dippm.devices import find_device
from dippm.evaluation.better_devices import Improvement, improve
from dippm.graph import OpKind
from dippm.predictors.physics import PhysicsPredictor

_KEYS = sorted(GraphCache(SHIPPED_FOLDER).keys())
_PLAIN = ("A100-SXM4-40GB", "L40S", "A10")
_EXACT = 1.0 - 1e-9
# Learned kernel times and the network's corrections are smooth in the size of a problem, and monotone up to this.
_LEARNED = 0.985
_FEW = settings(max_examples=15, deadline=None, derandomize=True)


@cache
def _graph(key):
    return GraphCache(SHIPPED_FOLDER).load(key, batch=1).graph


def _conditions(mode, precision=None):
    """By default those that the plain sum answers with tiles and bandwidth alone."""
    if precision is None:
        precision = Precision.TF32 if mode is Mode.INFERENCE else Precision.FP16
    return Conditions(precision=precision, mode=mode, optimizer=Optimizer.MOMENTUM if mode is Mode.TRAINING else None)


def _predict(key, device, batches, conditions):
    return PhysicsPredictor.load().predict(_graph(key), batches=batches, devices=[device], conditions=conditions)


@_FEW
@given(st.sampled_from(_KEYS), st.sampled_from(_PLAIN), st.integers(0, 8), st.sampled_from(Mode))
def test_twice_the_batch_never_takes_less_time_by_the_plain_sum(key, device, exponent, mode):
    less, more = _predict(key, find_device(device), [2**exponent, 2 ** (exponent + 1)], _conditions(mode))
    assert more.latency_ms >= _EXACT * less.latency_ms


@_FEW
@given(
    st.sampled_from(_KEYS),
    st.sampled_from(
        [
            ("GeForce RTX 3090", Precision.AMP),
            ("A100-SXM4-40GB", Precision.AMP),
            ("H100 80GB HBM3", Precision.AMP),
            ("A100-SXM4-40GB", Precision.FP32),
            ("A100-SXM4-40GB", Precision.FP16),
        ]
    ),
    st.integers(0, 8),
    st.sampled_from(Mode),
)
def test_twice_the_batch_takes_hardly_less_time_by_what_was_learned(key, how, exponent, mode):
    device, precision = how
    batches = [2**exponent, 2 ** (exponent + 1)]
    less, more = _predict(key, find_device(device), batches, _conditions(mode, precision))
    assert more.latency_ms >= _LEARNED * less.latency_ms


@_FEW
@given(
    st.sampled_from(_KEYS), st.sampled_from(_PLAIN), st.lists(st.integers(1, 600), min_size=2, max_size=2, unique=True)
)
def test_tensors_never_need_less_memory_with_more_batch(key, device, batches):
    less, more = _predict(key, find_device(device), sorted(batches), _conditions(Mode.TRAINING))
    for part in ("weights", "gradients", "optimizer"):
        assert more.memory_parts_mb[part] <= _parts(more)
    assert _parts(more) >= _EXACT * _parts(less)


def _parts(prediction):
    return sum(mb for name, mb in prediction.memory_parts_mb.items() if name not in ("context", "slack"))


@_FEW
@given(
    st.sampled_from(_KEYS),
    st.sampled_from(_PLAIN),
    st.sampled_from([Improvement.ALL, Improvement.BANDWIDTH, Improvement.MEMORY]),
    st.sampled_from([1, 16, 256]),
    st.sampled_from(Mode),
)
def test_a_better_device_is_never_slower(key, device, what, batch, mode):
    card = find_device(device)
    (worse,) = _predict(key, card, [batch], _conditions(mode))
    (better,) = _predict(key, improve(card, what), [batch], _conditions(mode))
    assert better.latency_ms <= worse.latency_ms / _EXACT


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("device", [*_PLAIN, "GeForce RTX 3090"])
def test_more_layers_never_cost_less(new_builder, device, mode):
    def chain(layers):
        builder = new_builder()
        n = builder.N
        square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
        x = builder.input(n, 64, 56, 56)
        for _ in range(layers):
            x = builder.node(OpKind.CONV, [x, builder.weight(64, 64, 3, 3)], n, 64, 56, 56, **square)
            x = builder.node(OpKind.RELU, [x], n, 64, 56, 56)
        return builder.graph(x)

    card, predictor = find_device(device), PhysicsPredictor.load()
    answers = [
        predictor.predict(chain(layers), batches=[1, 64], devices=[card], conditions=_conditions(mode))
        for layers in (1, 2, 3, 6)
    ]
    for fewer, more in pairwise(answers):
        for less, greater in zip(fewer, more, strict=True):
            assert greater.latency_ms > less.latency_ms
            assert _parts(greater) >= _parts(less)


def test_a_step_at_batch_one_has_one_host_on_every_card():
    """A step that waits for the host takes about as long on all cards, whoever predicts the device's part of it."""
    key = next(key for key in _KEYS if len(_graph(key).nodes) > 300)
    conditions = _conditions(Mode.TRAINING, Precision.AMP)
    corrected, plain = (
        _predict(key, find_device(name), [1], conditions)[0] for name in ("GeForce RTX 3090", "Tesla P100-PCIE-16GB")
    )
    assert corrected.latency_ms < 1.4 * plain.latency_ms


def test_a_sum_over_millions_takes_no_longer_on_a_card_with_more_multiprocessors(new_builder):
    """The gradient of a small weight: cuBLAS lets all multiprocessors share the sum."""
    builder = new_builder()
    n = builder.N
    rows = builder.input(n, 331776, 4)
    graph = builder.graph(builder.node(OpKind.LINEAR, [rows, builder.weight(4, 4)], n, 331776, 4))
    card = find_device("A100-SXM4-40GB")
    better = replace(improve(card, Improvement.SMS), name="more SMs")
    times = [
        PhysicsPredictor.load()
        .predict(graph, batches=[16], devices=[each], conditions=_conditions(Mode.TRAINING, Precision.FP32))[0]
        .latency_ms
        for each in (card, better)
    ]
    assert times[1] < 1.05 * times[0]
