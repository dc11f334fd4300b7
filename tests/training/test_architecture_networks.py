"""Networks of an architecture, trained on captured and traced calls that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
from dippm.costs.captured_time import UNTRACED
from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.kernels.model import load_kernel_model
from dippm.datasets.captured_operators import captured_ms
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.datasets.store.traces import write_traces
from dippm.devices import find_device
from dippm.features.physical import PhysicalPlan
from dippm.features.physical.columns import AT
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Graph, OpKind
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.operator_run import KernelRun, OperatorRun
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import OWN_REGIMES, AdditiveArtefact, manifest_path, read_tensors
from dippm.predictors.calibration import Calibration
from dippm.training import architecture_networks
from dippm.training.additive_protocol import HeldOut
from dippm.training.additive_samples import graph_that_ran
from dippm.training.architecture_networks import (
    SHARED_SOURCE,
    is_captured_alone,
    load_traced_samples,
    measured_errors,
    traced_operators,
)

# Kernels of three, four and three times one microsecond.
_CAPTURED_MS = (10.0 * UNTRACED + 0.43 + 0.34 + 3 * 0.61) / 1e3
_WIDTHS = tuple(range(16, 336, 16))


def _graph(builder: Any, width: int) -> Graph:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 3, 32, 32)
    x = builder.node(OpKind.CONV, [x, builder.weight(width, 3, 3, 3)], n, width, 32, 32, **square)
    x = builder.node(OpKind.RELU, [x], n, width, 32, 32)
    x = builder.node(OpKind.RELU, [x], n, width, 32, 32)
    return builder.graph(builder.node(OpKind.GLOBAL_POOL, [x], n, width, 1, 1, output_size=(1, 1)))  # type: ignore[no-any-return]


def _label(width: int, latency_ms: float, **conditions: Any) -> Label:
    recipe = Recipe(
        collection="made-up",
        family=f"family{width // 16 % 5}",
        architecture="timm:resnet",
        arguments={"width": width},
        inputs=InputShapes(positional=(InputEntry(shape=(3, 32, 32)),)),
        batch=8,
    )
    asked = {"precision": "amp", "runtime": "cuda-graph", **conditions}
    measurement = Measurement(
        outcome=Outcome.OK,
        device="H200",
        measured_at="",
        latency_ms=latency_ms,
        software=SoftwareStack(framework="torch 2.11.0"),
    )
    configuration = Configuration(batch=8, conditions=Conditions.parse(**asked))
    return Label(recipe=recipe, configuration=configuration, measurement=measurement)


def _runs(width: int, *, us: float) -> list[OperatorRun]:
    """A convolution of two kernels, and three operators of one."""

    def run(name: str, shape: tuple[int, ...], *durations_us: float) -> OperatorRun:
        kernels = [KernelRun(name="k", launched_by=name, start_us=0.0, duration_us=each) for each in durations_us]
        return OperatorRun(name=name, input_shapes=(shape,), scalars=("",), is_backward=False, kernels=kernels)

    image = (8, width, 32, 32)
    return [
        run("aten::conv2d", (8, 3, 32, 32), 3 * us, 4 * us),
        run("aten::relu_", image, us),
        run("aten::relu_", image, us),
        run("aten::adaptive_avg_pool2d", image, us),
    ]


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, new_builder: Callable[[], Any]) -> GraphCache:
    cache = GraphCache(tmp_path / "graphs")
    for width in _WIDTHS:
        for mode in Mode:
            graph = _graph(new_builder(), width)
            cache.of(mode).save(_label(width, 1.0).recipe.model_key, graph, fingerprint=str(width))
    return cache


def test_kernels_take_what_the_call_takes(cache: GraphCache) -> None:
    # Ten microseconds of five kernels, 2.6 between them in a captured graph, fifteen of the call.
    runs = _runs(32, us=1.0)
    scale = 0.015 / sum(captured_ms(run) for run in runs)
    found = traced_operators(_label(32, 0.015), runs, cache)
    times = sorted(mean_ms * count for mean_ms, count in found.values())
    assert times == pytest.approx(sorted(scale * captured_ms(run) for run in runs))
    assert sum(times) == pytest.approx(0.015)


def test_kernels_that_the_tracer_held_up_are_taken_to_fill_the_call(cache: GraphCache) -> None:
    found = traced_operators(_label(32, 0.005), _runs(32, us=1.0), cache)
    assert sum(mean_ms * count for mean_ms, count in found.values()) == pytest.approx(0.005)


def test_kernels_that_run_side_by_side_take_what_the_others_leave(
    cache: GraphCache, new_builder: Callable[[], Any]
) -> None:
    """A trace runs the kernels of four groups, fifteen microseconds, one after the other."""
    builder = new_builder()
    n, square = builder.N, {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 4}
    x = builder.node(OpKind.CONV, [builder.input(n, 64, 8, 8), builder.weight(64, 16, 3, 3)], n, 64, 8, 8, **square)
    graph = builder.graph(builder.node(OpKind.RELU, [x], n, 64, 8, 8))
    kernel = KernelRun(name="k", launched_by="aten::conv2d", start_us=0.0, duration_us=1.0)

    def run(name: str, *kernels: KernelRun) -> OperatorRun:
        shapes = ((8, 64, 8, 8), (64, 16, 3, 3))
        return OperatorRun(name=name, input_shapes=shapes, scalars=("",), is_backward=False, kernels=list(kernels))

    runs = [run("aten::conv2d", *[kernel] * 15), run("aten::relu_", replace(kernel, duration_us=3.0))]

    def found(call_ms: float, **conditions: Any) -> list[float]:
        label = _label(64, call_ms, **conditions)
        cache.save(label.recipe.model_key, graph, fingerprint="split")
        return sorted(mean_ms * count for mean_ms, count in traced_operators(label, runs, cache).values())

    alone, one_by_one = captured_ms(runs[1]), 0.015 * UNTRACED
    assert found(alone + 0.006) == pytest.approx([alone, 0.006])
    # They take no longer than in the trace, and some time.
    assert found(0.1) == pytest.approx([0.1 * each / (alone + one_by_one) for each in (alone, one_by_one)])
    least = 0.15 * one_by_one
    assert found(0.002) == pytest.approx([0.002 * each / (alone + least) for each in (least, alone)])
    # In an eager call they run as in the trace, each behind the one before.
    assert found(0.034, runtime="eager") == pytest.approx(
        [0.034 * captured_ms(run) / sum(map(captured_ms, runs)) for run in reversed(runs)]
    )


def test_a_graph_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert traced_operators(_label(32, 0.015), _runs(32, us=1.0), GraphCache(tmp_path)) == {}


def test_eager_calls_count_as_long_as_the_device_works(cache: GraphCache, tmp_path: Path) -> None:
    captured, eager = _label(32, 0.5), _label(48, 0.5, runtime="eager")
    step = _label(64, 0.5, runtime="eager", mode="training", optimizer="sgd")
    untraced = _label(80, 0.5)
    labels = [captured, eager, step, untraced]
    traces = {label.key: _runs(32, us=1.0) for label in labels[:3]}
    places = {"cache": tmp_path / "graphs", "folder": tmp_path / "arrays"}
    samples = load_traced_samples(labels, traces, mode=Mode.INFERENCE, **places)
    assert [label.recipe for label in samples.labels] == [captured.recipe, eager.recipe]
    # All but the launch; five kernels as a captured graph runs them.
    assert samples.measured_ms.tolist() == pytest.approx([0.48 / 1.009, _CAPTURED_MS])
    # Fits on other times of the same calls are other fits.
    slower = traces | {captured.key: _runs(32, us=2.0)}
    assert load_traced_samples(labels, traces, mode=Mode.INFERENCE, **places).key == samples.key
    assert load_traced_samples(labels, slower, mode=Mode.INFERENCE, **places).key != samples.key
    assert samples.traced is not None
    assert samples.traced.group_offsets.tolist()[-1] == len(samples.traced.log_ms)
    steps = load_traced_samples(labels, traces, mode=Mode.TRAINING, **places)
    assert [label.recipe for label in steps.labels] == [step.recipe]
    # Ten microseconds of kernels and one between each two.
    assert steps.measured_ms.tolist() == pytest.approx([0.015])


def test_captured_calls_beside_other_processes_count_as_long_as_their_kernels_with_the_gap_of_one_alone(
    cache: GraphCache, tmp_path: Path
) -> None:
    label = replace(_label(32, 0.011), source=SHARED_SOURCE)
    samples = load_traced_samples(
        [label],
        {label.key: _runs(32, us=1.0)},
        mode=Mode.INFERENCE,
        cache=tmp_path / "graphs",
        folder=tmp_path / "arrays",
    )
    assert samples.measured_ms.tolist() == pytest.approx([_CAPTURED_MS])


def test_so_do_captured_calls_that_something_else_made_longer(cache: GraphCache, tmp_path: Path) -> None:
    quiet, disturbed = _label(32, 0.5), _label(48, 0.5)
    labels = [
        replace(label, measurement=replace(label.measurement, latency_std_ms=std_ms))
        for label, std_ms in ((quiet, 0.0499), (disturbed, 0.0501))
    ]
    places = {"cache": tmp_path / "graphs", "folder": tmp_path / "arrays"}
    traces = {label.key: _runs(32, us=1.0) for label in labels}
    samples = load_traced_samples(labels, traces, mode=Mode.INFERENCE, **places)
    assert samples.measured_ms.tolist() == pytest.approx([0.48 / 1.009, _CAPTURED_MS])
    assert [is_captured_alone(label) for label in samples.labels] == [True, False]


@pytest.mark.parametrize(
    ("seen", "learned_ms"),
    [
        ({}, 0.48),
        ({"device_time_ms": 0.477}, 0.47),  # 7 us between the events beside the kernels
        ({"device_time_ms": 0.49, "latency_min_ms": 0.495}, 0.475),
        ({"device_time_ms": 0.477, "latency_min_ms": 0.495}, 0.47),
        ({"device_time_ms": 0.6, "latency_min_ms": 0.5}, 0.48),
        ({"device_time_ms": 0.001}, 0.24),
    ],
)
def test_networks_learn_the_least_that_was_seen_of_a_captured_call(
    cache: GraphCache, tmp_path: Path, seen: dict[str, float], learned_ms: float
) -> None:
    captured, eager = (_label(width, 0.5, runtime=runtime) for width, runtime in ((32, "cuda-graph"), (48, "eager")))
    labels = [replace(label, measurement=replace(label.measurement, **seen)) for label in (captured, eager)]
    samples = load_traced_samples(
        labels,
        {label.key: _runs(32, us=1.0) for label in labels},
        mode=Mode.INFERENCE,
        cache=tmp_path / "graphs",
        folder=tmp_path / "arrays",
    )
    # Predictions are tested on what users see.
    assert samples.measured_ms.tolist() == pytest.approx([0.48 / 1.009, _CAPTURED_MS])
    assert samples.learned_ms == pytest.approx([learned_ms, _CAPTURED_MS])
    # What a call takes beside its kernels is spread over them.
    assert samples.traced is not None
    first = slice(*samples.traced.group_offsets[:2])
    assert np.exp(samples.traced.log_ms[first]).sum() == pytest.approx(learned_ms)


def test_the_shortest_calls_are_half_their_launch(cache: GraphCache, tmp_path: Path) -> None:
    label = _label(32, 0.03)
    places = {"cache": tmp_path / "graphs", "folder": tmp_path / "arrays"}
    samples = load_traced_samples([label], {label.key: _runs(32, us=1.0)}, mode=Mode.INFERENCE, **places)
    assert samples.measured_ms.tolist() == pytest.approx([0.015 / 1.009])


@pytest.mark.parametrize(("groups", "busy_ms"), [(4, 0.012 * UNTRACED), (16, 0.0256688)])
def test_split_convolutions_beside_other_processes_run_side_by_side(
    cache: GraphCache, new_builder: Callable[[], Any], tmp_path: Path, groups: int, busy_ms: float
) -> None:
    """Four groups of four kernels, sixteen microseconds one after the other, take three quarters; others wait."""
    builder = new_builder()
    n, square = builder.N, {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    weight = builder.weight(64, 64 // groups, 3, 3)
    x = builder.node(OpKind.CONV, [builder.input(n, 64, 8, 8), weight], n, 64, 8, 8, **square)
    label = replace(_label(64, 0.5), source=SHARED_SOURCE)
    cache.save(label.recipe.model_key, builder.graph(x), fingerprint="split")
    kernel = KernelRun(name="k", launched_by="aten::conv2d", start_us=0.0, duration_us=1.0)
    shapes = ((8, 64, 8, 8), (64, 64 // groups, 3, 3))
    runs = [
        OperatorRun(name="aten::conv2d", input_shapes=shapes, scalars=("",), is_backward=False, kernels=[kernel] * 16)
    ]
    places = {"cache": tmp_path / "graphs", "folder": tmp_path / "arrays"}
    samples = load_traced_samples([label], {label.key: runs}, mode=Mode.INFERENCE, **places)
    assert samples.measured_ms.tolist() == pytest.approx([busy_ms])
    ((mean_ms, count),) = traced_operators(samples.labels[0], runs, cache).values()
    assert (mean_ms, count) == (pytest.approx(busy_ms), 1)


def test_errors_are_those_of_wall_times_measured_alone() -> None:
    labels = (_label(32, 0.2), replace(_label(48, 0.2), source=SHARED_SOURCE), _label(64, 0.2, runtime="eager"))
    samples: Any = SimpleNamespace(labels=labels, measured_ms=np.array([0.18, 0.2, 0.2]))
    nothing = np.zeros(0)

    def held(*rows: int) -> HeldOut:
        return HeldOut(
            validation=nothing.astype(int),
            validation_ms=nothing,
            validation_distance=nothing,
            test=np.array(rows),
            test_ms=np.full(len(rows), 0.2),
            test_distance=np.zeros(len(rows)),
        )

    assert measured_errors(samples, [held(0, 2), held(1)])["mape_percent"] == pytest.approx(10.01)
    assert measured_errors(samples, [held(2)])["mape_percent"] == pytest.approx(0.0)


def _command(folder: Path, labels: list[Label], runs: Callable[[int], list[OperatorRun]], *more: str) -> None:
    export_parquet(labels, folder / "labels.parquet")
    write_traces(folder / "traces.parquet", ((label.key, runs(w)) for label, w in zip(labels, _WIDTHS, strict=True)))
    names = {
        "labels": "labels.parquet",
        "traces": "traces.parquet",
        "cache": "graphs",
        "folder": "arrays",
        "out": "out",
    }
    given = [part for name, file in names.items() for part in (f"--{name}", str(folder / file))]
    # Two files of each, the second of another way to measure.
    shared = [folder / "shared.parquet", folder / "shared-traces.parquet"]
    export_parquet([replace(labels[0], source=SHARED_SOURCE)], shared[0])
    write_traces(shared[1], [(replace(labels[0], source=SHARED_SOURCE).key, runs(_WIDTHS[0]))])
    for option, path in zip(("--labels", "--traces"), shared, strict=True):
        given.insert(given.index(option) + 2, str(path))
    architecture_networks.main([*given, "--members", "1", "--epochs", "2", *more])


def test_the_command_writes_networks_that_answer_on_their_architecture(
    cache: GraphCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [_label(width, 0.001 * width) for width in _WIDTHS]
    _command(tmp_path, labels, lambda width: _runs(width, us=0.05 * width))
    report = json.loads(capsys.readouterr().out)
    assert report["test"]["models_left_out"]["rows"] == report["test"]["families_left_out"]["rows"] == len(labels)
    path = manifest_path(OWN_REGIMES[0], tmp_path / "out")
    artefact = AdditiveArtefact.read(path)
    assert (artefact.mode, artefact.runtime, artefact.architectures) == (
        Mode.INFERENCE,
        Runtime.EAGER,
        ("9.0", "10.0", "10.3"),
    )
    assert artefact.measured["runtimes"] == ["cuda-graph"]
    own = Calibration.read().rates.on(find_device("H200"))
    assert artefact.rates.group_norm_cycles == own.group_norm_cycles > 0.0
    assert artefact.rates.pool_tap_cycles == own.pool_tap_cycles > 0.0
    assert artefact.rates.plane_cycles == own.plane_cycles > 0.0
    assert artefact.rates.group_kernel_us == own.group_kernel_us > 0.0
    assert artefact.rates.side_by_side == own.side_by_side > 1.0
    assert artefact.rates.cache_bytes_per_cycle == own.cache_bytes_per_cycle > 0.0
    assert (artefact.rates.gap_us, artefact.rates.stream) == (own.gap_us, own.stream)
    assert "shared.parquet" in str(artefact.provenance["command"])
    # That the rows of a product are a multiple of 8 is none of the networks' business, nor is the rank of a tensor.
    factor = read_tensors(path)["scale.factor"]
    assert [factor[AT[name]] for name in ("rows_by_8", "input_rank", "output_rank")] == [0.0, 0.0, 0.0]
    assert factor[AT["rows"]] > 0.0
    predictor = AdditivePredictor([(artefact, read_tensors(path))], load_kernel_model())
    captured = Conditions.parse(precision="amp", runtime="cuda-graph")
    assert predictor.is_measured(find_device("H200"), captured)
    graph = cache.load(labels[0].recipe.model_key, batch=8)
    assert graph is not None
    assert predictor.predict_ms(graph.graph, [8], find_device("H200"), captured)[0] > 0.0


def _runs_of_step(width: int) -> list[OperatorRun]:
    image = (8, width, 32, 32)

    def run(name: str, shape: tuple[int, ...], *, is_backward: bool = True) -> OperatorRun:
        kernel = KernelRun(name="k", launched_by=name, start_us=0.0, duration_us=0.1 * width)
        return OperatorRun(name=name, input_shapes=(shape,), scalars=("",), is_backward=is_backward, kernels=[kernel])

    back = ["aten::div", "aten::threshold_backward", "aten::threshold_backward", "aten::convolution_backward"]
    update = run("aten::_foreach_add_", (), is_backward=False)
    return [*_runs(width, us=0.05 * width), *(run(name, image) for name in back), update]


def test_networks_of_training_steps_answer_beside_those_of_calls(
    cache: GraphCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [_label(width, 0.001 * width) for width in _WIDTHS]
    steps = [_label(width, 9.0, runtime="eager", mode="training", optimizer="sgd") for width in _WIDTHS]
    _command(tmp_path, calls, lambda width: _runs(width, us=0.05 * width))
    _command(tmp_path, steps, _runs_of_step, "--mode", "training")
    report = json.loads(capsys.readouterr().out.partition("\n}\n")[2])
    # Steps count all alike; of calls those that were captured alone.
    assert report["test"]["models_left_out"]["rows"] == report["test"]["families_left_out"]["rows"] == len(steps) + 1
    artefact = AdditiveArtefact.read(manifest_path(OWN_REGIMES[1], tmp_path / "out"))
    assert (artefact.mode, artefact.measured["runtimes"], artefact.measured["optimizers"]) == (
        Mode.TRAINING,
        ["eager"],
        ["sgd"],
    )
    assert artefact.rates.group_norm_cycles == artefact.rates.pool_tap_cycles == 0.0
    predictor, h200 = AdditivePredictor.load(tmp_path / "out"), find_device("H200")
    cached = cache.load(steps[0].recipe.model_key, batch=8)
    assert cached is not None
    for labels in (calls, steps):
        conditions = labels[0].configuration.conditions
        graph = graph_that_ran(cached.graph, labels[0])
        kernels = PhysicalPlan.from_graph(graph, conditions.precision, conditions.runtime).kernels
        own = predictor.on(h200, conditions, kernels)
        assert own is not predictor
        assert own.artefact(conditions).mode is conditions.mode
        assert own.predict_ms(graph, [8], h200, conditions)[0] > 0.0
        assert predictor.on(find_device("A100"), conditions, kernels) is predictor
