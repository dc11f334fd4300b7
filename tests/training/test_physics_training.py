"""The fit of training steps, on a small table of made-up models."""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="SciPy is not installed: pip install 'dippm[train]'")

from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.timm_tables import TimmRow
from dippm.graph import Graph, OpKind
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.training import physics_training
from dippm.training.physics import predict_ms, read_items
from dippm.training.physics_training import main

TABLE = "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv"
MODELS = 10
BATCHES = (64, 128, 256)


def network(builder: Any, *, channels: int) -> Graph:
    """Convolutions with norms: work for tensor cores, and as much that waits for memory."""
    n, width = builder.N, 3
    value = builder.input(n, 3, 32, 32)
    square = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
    for _ in range(3):
        value = builder.node(OpKind.CONV, [value, builder.weight(channels, width, 3, 3)], n, channels, 32, 32, **square)
        value = builder.node(OpKind.RELU, [value], n, channels, 32, 32)
        width = channels
    return builder.graph()  # type: ignore[no-any-return]


def row_of(number: int, step_time_ms: float) -> TimmRow:
    return TimmRow(
        model=f"net{number}", image_size=32, batch=BATCHES[number % len(BATCHES)], step_time_ms=step_time_ms,
        mode="training", precision="amp", layout="nchw", runtime="eager", device="GeForce RTX 3090",
        torch_version="112", cuda_version="113",
    )  # fmt: skip


def write_table(path: Path, rows: list[TimmRow], *, mode: str = "train") -> None:
    columns = ["model", *(f"{mode}_{name}" for name in ("img_size", "batch_size", "step_time"))]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([row.model, row.image_size, row.batch, row.step_time_ms] for row in rows)


@dataclass(frozen=True)
class Measured:
    """Where the tables lie, the graphs of their models, and the rates that made the times."""

    data: Path
    cache: Path
    rates: Rates


@pytest.fixture(name="measured", scope="module")
def _measured(new_builder: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Measured:
    data, cache = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("graphs")
    rows = [row_of(number, 1.0) for number in range(MODELS)]
    graphs = GraphCache(cache)
    for label in labels_of_timm_rows(rows):
        number = int(label.recipe.architecture.removeprefix("zoo:timm:net"))
        graph = network(new_builder(), channels=32 * (2 + number))
        graphs.save(label.recipe.model_key, graph, fingerprint="")
    # As measured on a card whose memory and tensor cores are slower than in inference.
    rates = replace(Calibration.read().rates, stream=0.6, tensor_conv=0.4, nchw_shuffle=0.5, weight_gradient=2.0)
    # What published_rates tells afterwards.
    rates = replace(rates, convolution_host=Rates().convolution_host)
    names = [(row.model, row.image_size) for row in rows]
    items = read_items(rows, names, graphs, jobs=1, lay_out=physics_training._lay_out)
    times = [float(predict_ms(items[name], rates, load_kernel_model())[0]) for name in names]
    (data / "timm").mkdir()
    write_table(data / "timm" / TABLE, [row_of(number, time) for number, time in enumerate(times)])
    # Of inference, a thousand times as slow: who took these in would notice.
    slow = [row_of(number, 1000.0 * time) for number, time in enumerate(times)]
    write_table(data / "timm" / TABLE.replace("train", "infer"), slow, mode="infer")
    return Measured(data=data, cache=cache, rates=rates)


@pytest.fixture(name="fit")
def _fit(measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Calibration]:
    monkeypatch.setenv("DIPPM_DATA", str(measured.data))

    def run(*options: str) -> Calibration:
        out = tmp_path / "physics_training.json"
        main(["--cache", str(measured.cache), "--out", str(out), *options])
        return Calibration.read(out)

    return run


def test_rates_that_made_the_times_are_come_nearer_to(fit: Callable[..., Calibration]) -> None:
    provenance = fit("--evaluations", "12").provenance
    before, after = provenance["untrained_rates"], provenance["test"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert before["mape_percent"] > 10
    assert after["mape_percent"] < before["mape_percent"] / 5
    # Four tenths of the models to fit on, and three each for the interval and for the test.
    assert provenance["models"] == {"fit": 4, "calibration": 3, "test": 3}
    assert before["rows"] == after["rows"] == 3


def test_rates_keep_to_their_bounds_and_the_others_are_those_of_inference(fit: Callable[..., Calibration]) -> None:
    rates = asdict(fit("--evaluations", "2").rates)
    # What autograd takes of the host is given.
    inference = asdict(Calibration.read().rates) | {"backward_host": 0.7}
    fitted = physics_training._BOUNDS
    assert all(low * 0.999 <= rates[name] <= high * 1.001 for name, (low, high) in fitted.items())
    assert {name: rates[name] for name in rates if name not in fitted} == {
        name: inference[name] for name in inference if name not in fitted
    }
    assert rates["stream"] != inference["stream"]


def test_what_is_given_and_what_inference_knows_is_handed_on(
    fit: Callable[..., Calibration], measured: Measured
) -> None:
    found = fit("--evaluations", "1", "--memory-spread", "0.125", "--memory-spread-low", "0.25")
    inference = Calibration.read()
    assert (found.memory_spread, found.memory_spread_low) == (0.125, 0.25)
    assert (found.power, found.power_spread) == (inference.power, inference.power_spread)
    assert (found.context_margin_mb, found.version) == (inference.context_margin_mb, inference.version)
    # What the power rests on is for the fit of the power to say.
    assert "power" not in found.labels
    assert found.measured_devices == ("GeForce RTX 3090",)
    assert found.measured_precisions == ("amp",)
    # Elsewhere it is less certain by as much as inference is.
    growth = inference.latency_spread_elsewhere / inference.latency_spread
    assert found.latency_spread_elsewhere / found.latency_spread == pytest.approx(growth, rel=1e-3)
    # The tables of inference are no part of what was fitted on.
    digest = hashlib.sha256((measured.data / "timm" / TABLE).read_bytes()).hexdigest()
    assert found.provenance["data_sha256"] == digest


def test_the_command_in_the_artefact_makes_it_again(
    fit: Callable[..., Calibration], measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fit("--evaluations", "1", "--models", "8", "--seed", "5", "--memory-spread-low", "0.05")
    printed = json.loads(capsys.readouterr().out)
    assert printed["provenance"] == first.provenance
    words = shlex.split(str(first.provenance["command"]))
    assert words[:3] == ["python", "-m", physics_training.__name__]
    options = [str(measured.cache) if word == "FOLDER" else word for word in words[3:]]
    assert fit(*options) == first
    assert first.provenance["models"] == {"fit": 3, "calibration": 2, "test": 3}


def test_another_seed_divides_the_models_otherwise(fit: Callable[..., Calibration]) -> None:
    one, other = (fit("--evaluations", "1", "--seed", seed) for seed in "01")
    assert one.provenance["test"] != other.provenance["test"]


def test_a_folder_of_graphs_must_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing is there to fit on, should it go on after all.
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "physics_training.json")])
    assert "--cache" in capsys.readouterr().err


def test_what_is_shipped_was_made_so() -> None:
    shipped = Calibration.read(TRAINING_ARTEFACT_PATH)
    assert str(shipped.provenance["command"]).startswith(f"python -m {physics_training.__name__} ")
    rates = asdict(shipped.rates)
    beyond = {name for name, (low, high) in physics_training._BOUNDS.items() if not low <= rates[name] <= high}
    assert beyond == set()
