import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer, Runtime
from dippm.costs.cpu_time import CpuFamily, CpuRates
from dippm.costs.precision import Precision
from dippm.errors import DippmError, UnsupportedError
from dippm.graph import MOST_RUNS, Graph, OpKind
from dippm.predictors.cpu import CpuPredictor
from dippm.predictors.cpu_calibration import CpuCalibration
from dippm.predictors.prediction import Prediction
from dippm.training.cpu import BOUNDS

CALIBRATION = CpuCalibration.read()
ROOT = Path(__file__).parents[2]
RATES = CALIBRATION.machines[0].rates
BATCHES = [1, 2, 3, 8, 50]


def make_graph(builder: Any, *, size: int = 32, depth: int = 2) -> Graph:
    n, width = builder.N, 3
    x = builder.input(n, 3, size, size)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    for _ in range(depth):
        x = builder.node(OpKind.CONV, [x, builder.weight(32, width, 3, 3)], n, 32, size, size, **square)
        x = builder.node(OpKind.RELU, [x], n, 32, size, size)
        width = 32
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 32, 1, 1, output_size=(1, 1))
    x = builder.node(OpKind.VIEW, [x], n, 32, alias_of=x)
    builder.node(OpKind.LINEAR, [x, builder.weight(1000, 32)], n, 1000)
    return builder.graph()


def predict(graph: Graph, *, batches: Any = BATCHES, rates: CpuRates = RATES, **more: Any) -> Any:
    conditions = more.pop("conditions", Conditions())
    return CpuPredictor.load().predict(
        graph, batches=batches, device="Processor", rates=rates, conditions=conditions, **more
    )


def figures(predictions: list[Prediction]) -> Any:
    return np.array([(each.latency_ms, each.memory_mb, each.macs) for each in predictions])


def test_a_model_with_an_autocast_of_its_own_stays_in_fp32(new_builder: Any) -> None:
    plain = make_graph(new_builder())
    nodes = [replace(node, attributes={**node.attributes, "lowers_to": "bfloat16"}) for node in plain.nodes]
    own = predict(replace(plain, nodes=tuple(nodes)))
    assert figures(own).tolist() == figures(predict(plain)).tolist()
    assert any("on a CPU they are taken to stay in FP32" in text for text in own[0].predictor.warnings)


def test_latency_and_memory_come_with_intervals_and_energy_does_not(builder: Any) -> None:
    first, *_ = answers = predict(make_graph(builder))
    assert [each.batch for each in answers] == BATCHES
    assert (first.device, first.energy_j, first.mig, first.conditions) == ("Processor", None, None, Conditions())
    assert first.mig_name == "no MIG"
    assert first.inputs == {"t0": (1, 3, 32, 32)}
    assert first.macs == 32 * 32 * 32 * 9 * (3 + 32) + 32_000
    assert set(first.intervals) == {"latency_ms", "memory_mb"}
    for answer in answers:
        for name, (low, high) in answer.intervals.items():
            assert 0 < low < getattr(answer, name) < high < math.inf
        assert sum(answer.memory_parts_mb.values()) == answer.memory_mb
    assert "Xeon" in first.predictor.labels
    assert first.warnings == ()


def test_every_figure_grows_with_batch_image_and_depth(new_builder: Any) -> None:
    by_batch = figures(predict(make_graph(new_builder())))
    assert np.all(np.diff(by_batch, axis=0) > 0)
    for name, values in (("size", (8, 20, 32, 64, 224)), ("depth", (1, 2, 5, 9))):
        found = np.array([figures(predict(make_graph(new_builder(), **{name: value}))) for value in values])
        assert np.all(np.diff(found[..., [0, 2]], axis=0) > 0), name
        assert np.all(np.diff(found[..., 1], axis=0) >= 0), name


@pytest.mark.parametrize(("name", "factor"), [("convolution_gflops", 0.3), ("cache_gb_s", 0.3), ("dispatch_us", 3.0)])
def test_a_slower_machine_is_never_predicted_faster(builder: Any, name: str, factor: float) -> None:
    graph, own = make_graph(builder), RATES
    slower = replace(own, **{name: factor * getattr(own, name)})
    assert np.all(figures(predict(graph, rates=slower))[:, 0] > figures(predict(graph))[:, 0])


def test_the_interval_is_wider_on_another_machine_and_for_a_longer_run(builder: Any) -> None:
    def width(answer: Prediction) -> float:
        low, high = answer.intervals["latency_ms"]
        return math.log(high / low) / 2

    graph = make_graph(builder, size=64)
    (known,) = predict(graph, batches=[1])
    assert width(known) == pytest.approx(CALIBRATION.latency_spread)
    unlike = replace(RATES, gflops=4 * RATES.gflops)
    distance = min(unlike.distance_to(machine.rates) for machine in CALIBRATION.machines if machine.rates.threads == 1)
    (other,) = predict(graph, batches=[1], rates=unlike)
    assert distance > math.log(1.5)
    assert width(other) == pytest.approx(CALIBRATION.latency_spread + CALIBRATION.doubt_per_rate * distance)
    assert "GFLOP/s" in other.warnings[0]
    (threaded,) = predict(graph, batches=[1], rates=replace(RATES, threads=64))
    assert width(threaded) == pytest.approx(CALIBRATION.latency_spread + math.log(2))
    assert "of this run: 64" in threaded.warnings[0]
    (long,) = predict(graph, batches=[100_000])
    doubt = CALIBRATION.doubt_beyond_labels * math.log(long.latency_ms / CALIBRATION.longest_ms)
    assert width(long) == pytest.approx(CALIBRATION.latency_spread + doubt)
    assert "slower than every model" in long.warnings[0]


def test_a_machine_is_as_sure_as_the_nearest_of_the_labels(builder: Any) -> None:
    graph = make_graph(builder, size=64)
    for machine in CALIBRATION.machines:
        (answer,) = predict(graph, batches=[1], rates=machine.rates)
        low, high = answer.intervals["latency_ms"]
        assert math.log(high / low) / 2 == pytest.approx(CALIBRATION.latency_spread)
        assert answer.warnings == ()


def test_an_operator_without_a_rule_is_doubt(builder: Any) -> None:
    builder.node(OpKind.UNKNOWN, [builder.input(builder.N, 64)], builder.N, 64)
    graph = replace(builder.graph(), unsupported_ops={"aten.odd": 1})
    (answer,) = predict(graph, batches=[1])
    low, high = answer.intervals["latency_ms"]
    assert math.log(high / low) / 2 == pytest.approx(CALIBRATION.latency_spread + 1.0)
    assert "aten.odd" in answer.warnings[0]


def test_memory_starts_from_what_the_process_holds(builder: Any) -> None:
    graph = make_graph(builder)
    (alone,) = predict(graph, batches=[8])
    (given,) = predict(graph, batches=[8], context_mb=1000.0)
    (first,) = predict(graph, batches=[8], context_mb=1000.0, imports_library=True)
    assert alone.memory_parts_mb["context"] == CALIBRATION.memory.context_mb
    assert given.memory_mb - alone.memory_mb == pytest.approx(1000 - CALIBRATION.memory.context_mb)
    assert first.memory_mb - given.memory_mb == pytest.approx(CALIBRATION.memory.library_mb)
    assert first.intervals["memory_mb"][0] == pytest.approx(given.intervals["memory_mb"][0])
    assert given.intervals["memory_mb"][0] >= 1000 + given.memory_parts_mb["weights"]


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (Conditions(mode=Mode.TRAINING, optimizer=Optimizer.SGD), "mode.unsupported"),
        (Conditions(precision=Precision.BF16), "precision.unsupported"),
        (Conditions(layout=Layout.NHWC), "layout.unsupported"),
        (Conditions(runtime=Runtime.COMPILE), "runtime.unsupported"),
    ],
)
def test_conditions_without_labels_are_refused(builder: Any, conditions: Conditions, code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        predict(make_graph(builder), conditions=conditions)
    assert caught.value.code == code


def test_strict_fp32_is_fp32(builder: Any) -> None:
    graph = make_graph(builder)
    strict = predict(graph, conditions=Conditions(precision=Precision.FP32_STRICT))
    assert np.array_equal(figures(strict), figures(predict(graph)))


def test_graphs_that_cannot_be_run_so_are_refused(builder: Any) -> None:
    graph = replace(make_graph(builder), fixed_batch=8, fixed_batch_reason="It says so.")
    with pytest.raises(UnsupportedError, match=r"\[1, 2, 3, 50\]") as caught:
        predict(graph)
    assert caught.value.code == "graph.fixed_batch"
    assert len(predict(graph, batches=[8])) == 1


def test_a_graph_of_views_alone_is_refused(builder: Any) -> None:
    x = builder.input(builder.N, 8)
    builder.node(OpKind.VIEW, [x], builder.N, 8, alias_of=x)
    with pytest.raises(UnsupportedError) as caught:
        predict(builder.graph())
    assert caught.value.code == "graph.empty"


def test_the_shipped_artefact_is_within_its_bounds_and_says_how_it_was_made() -> None:
    assert set(CALIBRATION.shares) == set(CpuFamily)
    for shares in CALIBRATION.shares.values():
        for name, (_, low, high) in BOUNDS.items():
            assert low * 0.999 <= getattr(shares, name) <= high * 1.001
    memory, provenance = CALIBRATION.memory, CALIBRATION.provenance
    assert memory.weights >= 1
    assert memory.activations >= 1
    assert 0 < memory.spread < 1
    assert 0 < CALIBRATION.latency_spread < math.log(2)
    assert 0 < CALIBRATION.doubt_per_rate < 1
    assert str(provenance["command"]).startswith("python -m dippm.training.cpu")
    tables: Any = provenance["tables"]
    assert len(tables) == len(CALIBRATION.machines)
    for table in tables:
        assert table["sha256"] == hashlib.sha256((ROOT / table["labels"]).read_bytes()).hexdigest()
        assert table["fit"]["mape_percent"] < 25
    for part in ("test", "families_left_out"):
        metrics: Any = provenance[part]
        assert metrics["rows"] >= 90
        assert 0 < metrics["median_ape_percent"] <= metrics["mape_percent"] < 30
        assert 80 <= metrics["interval_coverage_percent"] <= 100
    left_out: Any = provenance["machine_left_out"]
    assert set(left_out) == {machine.device for machine in CALIBRATION.machines}
    for metrics in left_out.values():
        assert metrics["interval_coverage_percent"] >= 90


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    CALIBRATION.write(tmp_path / "folder" / "cpu.json")
    assert CpuCalibration.read(tmp_path / "folder" / "cpu.json") == CALIBRATION


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 99),
        ("machines", [{"device": "x", "rates": {"gflops": 0}}]),
        ("shares", {}),
        ("memory", {}),
        ("extra", 1),
    ],
)
def test_a_damaged_artefact_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "cpu.json"
    CALIBRATION.write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(DippmError, match=r"cpu\.json") as caught:
        CpuCalibration.read(path)
    assert caught.value.code == "artefact.unreadable"


def test_the_interval_is_open_above_where_a_loop_may_run_more_often(builder: Any) -> None:
    x = builder.input(builder.N, 1024)
    builder.node(OpKind.LINEAR, [x, builder.weight(1024, 1024)], builder.N, 1024)
    graph = builder.graph()
    (plain,) = predict(graph, batches=[8])
    looped = replace(graph, nodes=(replace(graph.nodes[0], attributes={MOST_RUNS: 1000.0}),))
    (answer,) = predict(looped, batches=[8])
    assert answer.latency_ms == plain.latency_ms
    (low, high), (plain_low, plain_high) = answer.intervals["latency_ms"], plain.intervals["latency_ms"]
    assert (low, high) == (plain_low, pytest.approx(1000 * plain_high))
    assert any("1,000 times the loop's part" in warning for warning in answer.predictor.warnings)
