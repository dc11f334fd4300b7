"""Two answers for models in 16 bits, mixed by how well the networks know them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dippm.api.named_models import SHIPPED_FOLDER
from dippm.costs.conditions import Conditions
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.devices import find_device
from dippm.graph import DType, Graph, OpKind
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.pure_half import mix_by_novelty

_NO_HOST = Rates(host_scale=0.0)
_KNOWN, _SUMMED = 0.2, 0.5


@pytest.fixture(name="network")
def _network(builder: Any) -> Graph:
    x = builder.input(builder.N, 64)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(64, 64)], builder.N, 64)
    x = builder.node(OpKind.VIEW, [x], builder.N, 8, 8, alias_of=x)
    builder.node(OpKind.RELU, [x], builder.N, 8, 8)
    return builder.graph()


def mix(network: Graph, half_widths: list[float], *, by_networks: float = 4.0) -> LatencyBreakdown:
    """The plain sum says 1 ms for each kernel, the networks 4 unless told otherwise."""
    plan = KernelPlan.from_workload(Workload.from_graph(network, Precision.FP16))
    times, busy = np.array([2.0, 1.0, 1.0]), np.tile([1.0, 0.0, 1.0], (len(half_widths), 1))
    conditions = Conditions(precision=Precision.FP16)

    def breakdown(factor: float, own: np.ndarray[Any, Any] | None) -> list[LatencyBreakdown]:
        return LatencyBreakdown.of_each(
            factor * busy, plan, conditions=conditions, host=_NO_HOST, times=times, half_widths=[own]
        )

    (mixed,) = mix_by_novelty(
        breakdown(1.0, None),
        breakdown(by_networks, np.array(half_widths)),
        plan,
        conditions=conditions,
        host=_NO_HOST,
        times=times,
        known_half_width=_KNOWN,
        summed_half_width=_SUMMED,
    )
    return mixed


def test_the_networks_answer_where_they_were_calibrated_and_the_sum_far_from_there(network: Graph) -> None:
    mixed = mix(network, [0.05, 0.2, 0.25, 0.3, 0.9])
    # The linear layer runs twice, the view not at all.
    assert mixed.busy_ms.tolist() == pytest.approx(
        np.array([[8.0, 0.0, 4.0], [8.0, 0.0, 4.0], [4.0, 0.0, 2.0], [2.0, 0.0, 1.0], [2.0, 0.0, 1.0]])
    )
    assert mixed.latency_ms.tolist() == pytest.approx([12.0, 12.0, 6.0, 3.0, 3.0])
    assert mixed.half_width is not None
    assert mixed.half_width.tolist() == pytest.approx([0.05, 0.2, 0.375, 0.5, math.nan], nan_ok=True)
    assert mixed.knows_interval.tolist() == [True, True, True, True, False]


def test_a_model_that_the_networks_do_not_know_keeps_the_answer_of_the_sum(network: Graph) -> None:
    mixed = mix(network, [0.31, 4.0])
    assert not mixed.knows_interval.any()
    assert mixed.latency_ms.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("device", "changes", "near"),
    [
        ("A100", {"precision": "fp16"}, True),
        ("A100", {"precision": "bf16", "layout": "nhwc"}, True),
        ("A100", {"precision": "bf16", "runtime": "compile"}, True),
        ("A100", {"precision": "bf16", "runtime": "cuda-graph"}, True),
        ("A100", {"precision": "amp"}, False),
        ("A100", {"precision": "fp32"}, False),
        ("A100", {"precision": "bf16", "mode": "training", "optimizer": "adamw"}, True),
        ("T4", {"precision": "fp16"}, True),
        ("T4", {"precision": "bf16"}, False),
        ("P100", {"precision": "fp16"}, False),
    ],
)
def test_where_the_networks_know_the_kernels(device: str, changes: dict[str, str], near: bool) -> None:
    assert AdditivePredictor.load().is_near(find_device(device), Conditions.parse(**changes)) is near


@pytest.fixture(name="resnet", scope="module")
def _resnet() -> Graph:
    shipped = GraphCache(SHIPPED_FOLDER)
    keys = shipped.keys()
    entries = [shipped.load(key, batch=64) for key in keys]
    # There is one of training as well.
    return next(entry.graph for entry in entries if entry is not None and entry.graph.source == "torchvision:resnet50")


def _latencies_ms(graph: Graph, batches: list[int], device: str, **changes: Any) -> np.ndarray[Any, Any]:
    answers = PhysicsPredictor.load().predict(
        graph, batches=batches, devices=[find_device(device)], conditions=Conditions.parse(**changes)
    )
    return np.array([answer.latency_ms for answer in answers])


def test_an_image_model_in_16_bits_takes_no_longer_than_under_autocast(resnet: Graph) -> None:
    for pure, autocast in (("fp16", "amp"), ("bf16", "amp-bf16")):
        for runtime in ("eager", "cuda-graph", "compile"):
            ratio = _latencies_ms(resnet, [64, 256], "A100", precision=pure, layout="nhwc", runtime=runtime)
            ratio /= _latencies_ms(resnet, [64, 256], "A100", precision=autocast, layout="nhwc", runtime=runtime)
            assert (ratio < 1.02).all()
            assert (ratio > 0.8).all()


@pytest.mark.parametrize("device", ["A100", "RTX 5000 Ada", "T4"])
def test_a_captured_graph_in_16_bits_takes_no_longer_than_its_eager_calls(network: Graph, device: str) -> None:
    batches = [1, 64, 4096, 2**18]
    eager, captured = (
        _latencies_ms(network, batches, device, precision="fp16", runtime=runtime)
        for runtime in ("eager", "cuda-graph")
    )
    assert (captured <= eager).all()
    assert (np.diff(captured) >= 0.0).all()


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.parametrize("device", ["A100", "T4"])
@pytest.mark.filterwarnings("error")
def test_steps_in_16_bits_that_add_gradients_up_have_figures(device: str, accumulation: int, builder: Any) -> None:
    n, x = builder.N, builder.input(builder.N, 64)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(64, 64)], n, 64)
        x = builder.node(OpKind.GELU, [x], n, 64)
    graph, batches = builder.graph(), [1, 64, 4096, 2**16]
    step = {"precision": "fp16", "mode": "training", "optimizer": "sgd"}
    plain = _latencies_ms(graph, batches, device, **step)
    added = _latencies_ms(graph, batches, device, accumulation=accumulation, **step)
    assert np.isfinite(added).all()
    assert (added > plain).all()
    assert (added < accumulation * plain * 1.5).all()


def test_batches_of_a_model_in_16_bits_do_not_know_each_other(network: Graph) -> None:
    predictor, device = PhysicsPredictor.load(), find_device("A100")
    conditions = Conditions.parse(precision="fp16")
    together = predictor.predict(network, batches=[1, 64, 4096], devices=[device], conditions=conditions)
    for answer in together:
        (alone,) = predictor.predict(network, batches=[answer.batch], devices=[device], conditions=conditions)
        assert alone.latency_ms == pytest.approx(answer.latency_ms, rel=1e-5)
        assert alone.intervals["latency_ms"] == pytest.approx(answer.intervals["latency_ms"], rel=1e-5)
        assert alone.predictor == answer.predictor


def test_each_batch_says_by_itself_what_its_time_rests_on(resnet: Graph) -> None:
    predictor, device = PhysicsPredictor.load(), find_device("RTX 4090")
    conditions = Conditions.parse(precision="fp16", mode="training", optimizer="momentum")
    together = predictor.predict(resnet, batches=[1, 8, 64, 256], devices=[device], conditions=conditions)
    for answer in together:
        (alone,) = predictor.predict(resnet, batches=[answer.batch], devices=[device], conditions=conditions)
        assert alone.predictor == answer.predictor
        assert alone.intervals["latency_ms"] == pytest.approx(answer.intervals["latency_ms"], rel=1e-5)


def test_the_networks_stand_where_they_are_faster_however_novel_the_model_is(network: Graph) -> None:
    far = mix(network, [_KNOWN, 10 * _KNOWN], by_networks=0.25)
    assert far.busy_ms.sum(axis=1) == pytest.approx([0.75, 0.75])
    assert far.half_width == pytest.approx([_KNOWN, 10 * _KNOWN])


def _stored_in(builder: Any, dtype: DType) -> Graph:
    n, x = builder.N, builder.input(builder.N, 64, 56, 56, dtype=dtype)
    for _ in range(4):
        x = builder.node(OpKind.CONV, [x, builder.weight(64, 64, 3, 3, dtype=dtype)], n, 64, 56, 56, dtype=dtype)
        x = builder.node(OpKind.RELU, [x], n, 64, 56, 56, dtype=dtype)
    graph: Graph = builder.graph()
    return graph


@pytest.mark.parametrize("runtime", ["eager", "compile"])
@pytest.mark.parametrize("device", ["A100", "RTX 4090", "T4", "P100"])
@pytest.mark.parametrize(("dtype", "own"), [(DType.BFLOAT16, "bf16"), (DType.FLOAT16, "fp16")])
def test_what_is_stored_in_16_bits_is_answered_as_a_model_of_that_type(
    dtype: DType, own: str, device: str, runtime: str, new_builder: Any
) -> None:
    if runtime == "compile" and device == "P100":
        pytest.skip("no compiler writes for it")
    stored, plain = _stored_in(new_builder(), dtype), _stored_in(new_builder(), DType.FLOAT32)
    predictor, question = PhysicsPredictor.load(), {"batches": [1, 32, 256], "devices": [find_device(device)]}
    asked, kept = (Conditions.parse(precision=precision, runtime=runtime) for precision in (own, "fp32"))
    expected = predictor.predict(stored, conditions=asked, **question)
    together = predictor.predict_each([plain, stored], conditions=kept, **question)
    for answer, theirs in zip(together[1], expected, strict=True):
        assert answer.latency_ms == theirs.latency_ms
        assert answer.intervals == theirs.intervals
        assert answer.predictor.name == theirs.predictor.name
        assert (answer.memory_mb, answer.energy_j) == (theirs.memory_mb, theirs.energy_j)
    # What is beside it is not.
    assert together[0] == predictor.predict(plain, conditions=kept, **question)
    assert {answer.predictor.name for answer in together[0]} == {"physics-0"}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("dtype", "own"), [(DType.BFLOAT16, "bf16"), (DType.FLOAT16, "fp16")])
def test_a_compiled_step_of_what_is_stored_in_16_bits_is_that_of_a_model_of_that_type(
    dtype: DType, own: str, layout: str, new_builder: Any
) -> None:
    stored, plain = _stored_in(new_builder(), dtype), _stored_in(new_builder(), DType.FLOAT32)
    predictor = PhysicsPredictor.load()
    question: dict[str, Any] = {"batches": [1, 64], "devices": [find_device("A100"), find_device("T4")]}
    asked, kept = (
        Conditions.parse(precision=precision, mode="training", runtime="compile", optimizer="momentum", layout=layout)
        for precision in (own, "fp32")
    )
    expected = predictor.predict(stored, conditions=asked, **question)
    together = predictor.predict_each([plain, stored], conditions=kept, **question)
    assert [answer.latency_ms for answer in together[1]] == [answer.latency_ms for answer in expected]
    assert [answer.intervals for answer in together[1]] == [answer.intervals for answer in expected]
    assert [answer.predictor.labels for answer in together[1]] == [answer.predictor.labels for answer in expected]
    assert together[0] == predictor.predict(plain, conditions=kept, **question)


def test_under_autocast_what_is_stored_in_16_bits_is_answered_as_before(builder: Any) -> None:
    stored, predictor, device = _stored_in(builder, DType.FLOAT16), PhysicsPredictor.load(), find_device("A100")
    (answer,) = predictor.predict(stored, batches=[64], devices=[device], conditions=Conditions.parse(precision="amp"))
    assert answer.predictor.name == "additive-1"
    assert answer.intervals["latency_ms"][0] > 0.5 * answer.latency_ms
