"""What a call asks of its board."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.energy import KernelWork, PowerModel
from dippm.costs.latency import LatencyBreakdown
from dippm.devices import find_device
from dippm.graph import OpKind
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor

MODEL = PowerModel(idle=0.2, running_pj=10.0, flop_pj=5.0, tensor_pj=3.0, byte_pj=30.0)
A100 = find_device("A100-SXM4-40GB")


def test_the_same_work_in_twice_the_time_draws_less() -> None:
    load = BoardLoad(
        kernel_share=np.array([[0.5, 0.1]]),
        work=KernelWork(
            runs=np.array([1.0, 2.0]),
            plain_flops=np.array([[1e10, 0.0]]),
            tensor_flops=np.array([[2e11, 0.0]]),
            traffic_bytes=np.array([[1e9, 0.0]]),
            results=np.zeros((1, 2)),
        ),
    )
    running = 0.4 * 10.0 * 108 * 64 * 1.41e-3
    assert load.busy_share == pytest.approx([0.7])
    for latency_ms in (10.0, 20.0):
        busy_s = 0.5 * latency_ms / 1e3
        work_j = 0.4 * (5.0 * 0.01 + 3.0 * 0.2) + 30.0 * 0.001
        # Half of the time of 19.5 and 312 TFLOP/s and 1,555 GB/s: below 0.25 of them some lanes have no work.
        use = (0.01 / 19.5 + 0.2 / 312 + 0.001 / 1.555) / busy_s
        filled_s = min(busy_s - 4.5e-6, use * busy_s / 0.25)
        power = load.power_w(MODEL, A100, np.array([latency_ms]))
        assert power[0] == pytest.approx(80 + (filled_s * running + work_j) / (latency_ms / 1e3))


def test_a_board_that_makes_its_next_kernel_ready_draws_idle_power() -> None:
    nothing = np.zeros((1, 2))
    work = KernelWork(
        runs=np.array([1.0, 4.0]), plain_flops=nothing, tensor_flops=nothing, traffic_bytes=nothing, results=nothing
    )
    busy, times = np.array([[0.4, 0.01]]), work.runs
    paused = np.array([[0.0, 0.006]])
    with_pauses, without = (
        BoardLoad.of(LatencyBreakdown.of(busy, lambda: np.zeros(2), times, paused=each), work) for each in (paused, 0.0)
    )
    call_ms = 0.4 + 4 * 0.01
    assert with_pauses.kernel_share == pytest.approx(np.array([[0.4, 0.004]]) / call_ms)
    assert with_pauses.paused_share == pytest.approx([4 * 0.006 / call_ms])
    # The host is not waited for.
    assert with_pauses.busy_share == without.busy_share == pytest.approx([1.0])
    assert without.paused_share == pytest.approx([0.0])
    of_convolutions = KernelWork(
        runs=times,
        plain_flops=np.array([[1e9, 4e6]]),
        tensor_flops=nothing,
        traffic_bytes=nothing,
        results=np.full((1, 2), 1e9),
    )
    at_work, latency_ms = replace(with_pauses, work=of_convolutions), np.array([call_ms])
    # Convolutions keep their lanes at work for as long as they run, but for their first 4.5 microseconds.
    running_w = 0.4 * 10.0 * 108 * 64 * 1.41e-3
    lanes_j = running_w * (0.4e-3 - 4.5e-6)
    energy_j = at_work.energy_j(MODEL, A100, latency_ms)
    assert energy_j == pytest.approx(80 * call_ms / 1e3 + lanes_j + 0.4 * 5.0 * (1e9 + 4e6) * 1e-12, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (PowerModel(idle=0.2, running_pj=0.0, flop_pj=0.0, tensor_pj=0.0, byte_pj=0.0), (0.3, 0.3)),
        (PowerModel(idle=0.0, running_pj=0.0, flop_pj=0.0, tensor_pj=0.0, byte_pj=30.0), (0.0, 0.0)),
    ],
)
def test_energy_depends_on_the_time_by_what_is_drawn_for_as_long_as_it_runs(
    model: PowerModel, expected: tuple[float, float]
) -> None:
    nothing = np.zeros((1, 1))
    work = KernelWork(
        runs=np.ones(1),
        plain_flops=nothing,
        tensor_flops=nothing,
        traffic_bytes=np.full((1, 1), 1e9),
        results=nothing,
    )
    load, latency_ms = BoardLoad(kernel_share=np.ones((1, 1)), work=work), np.array([10.0])
    energy_j = load.energy_j(model, A100, latency_ms)
    below, above = load.energy_spreads(model, A100, latency_ms, energy_j, np.array([0.3]))
    assert (below[0], above[0]) == pytest.approx(expected)


def test_the_work_of_nodes_that_run_together_is_that_of_their_kernel(builder: Any) -> None:
    x = builder.input(builder.N, 256, 28, 28)
    for _ in range(3):
        x = builder.node(OpKind.SIGMOID, [x], builder.N, 256, 28, 28)
    graph, predictor = builder.graph(), PhysicsPredictor.load()
    load = predictor.load_of(graph, batch=256, device=A100, conditions=Conditions.parse(runtime="compile"))
    assert (load.kernel_share > 0.0).tolist() == [[False, False, True]]
    moved = 2.0 * 4 * 256 * 256 * 28 * 28
    assert load.work.traffic_bytes.tolist() == [[0.0, 0.0, moved]]
    assert load.work.plain_flops[0, 2] > 0.0
    assert load.work.plain_flops[0, :2].tolist() == [0.0, 0.0]


def test_a_compiled_convolution_keeps_its_results(builder: Any) -> None:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 64, 28, 28)
    x = builder.node(OpKind.CONV, [x, builder.weight(128, 64, 3, 3)], n, 128, 28, 28, **square)
    builder.node(OpKind.RELU, [x], n, 128, 28, 28)
    graph, predictor = builder.graph(), PhysicsPredictor.load()
    load = predictor.load_of(graph, batch=8, device=A100, conditions=Conditions.parse(runtime="compile"))
    assert load.work.results.sum() == 8 * 128 * 28 * 28
    assert load.work.results[load.kernel_share == 0.0].sum() == 0.0


def test_at_the_predicted_time_it_draws_what_was_predicted(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    graph, predictor = builder.graph(), PhysicsPredictor.load()
    (prediction,) = predictor.predict(graph, batches=[4096], devices=[A100], conditions=Conditions())
    load = predictor.load_of(graph, batch=4096, device=A100, conditions=Conditions())
    power = load.power_w(Calibration.read().power, A100, np.array([prediction.latency_ms]))
    assert prediction.energy_j == pytest.approx(float(power[0]) * prediction.latency_ms / 1e3, rel=1e-6)


def test_figures_of_one_graph_have_no_axis_of_graphs(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(64, 64)], builder.N, 64)
    load = PhysicsPredictor.load().load_of(builder.graph(), batch=4, device=A100, conditions=Conditions())
    assert np.shape(load.paused_share) == load.busy_share.shape == (1,)
