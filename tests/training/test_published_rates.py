"""Hosts and tensor cores fitted on published measurements."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
if find_spec("transformers") is None or find_spec("timm") is None:
    pytest.skip("transformers or timm is not installed", allow_module_level=True)

from dippm.costs.conditions import Mode
from dippm.costs.kernels.model import load_kernel_model
from dippm.evaluation.published import read_graphs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_published_runs
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, AdditiveArtefact
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.prepared_graph import CompiledGraphs
from dippm.training.published_rates import PublishedItem, fit_published_rates, log_errors, main

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER
RATES = {Mode.INFERENCE: Calibration.read().rates, Mode.TRAINING: Calibration.read(TRAINING_ARTEFACT_PATH).rates}


@pytest.fixture(scope="module")
def items() -> list[PublishedItem]:
    """BERT's training steps and DistilBERT's calls: small ones wait for the host, large ones for tensor cores."""
    runs = [
        run
        for run in read_published_runs(FOLDER)[0]
        if run.row.source == "transformers-docs-bert" or run.row.model_class == "DistilBertModel"
    ]
    graphs = read_graphs(runs, FOLDER)
    return [
        PublishedItem.of(run, CompiledGraphs.of([graphs[run.graph_key]], run.conditions, run.software)) for run in runs
    ]


def test_rates_that_made_the_times_are_found_again(items: list[PublishedItem]) -> None:
    kernels = load_kernel_model()
    true = {
        Mode.INFERENCE: replace(RATES[Mode.INFERENCE], host_scale=0.5, tensor_feed=2.0),
        Mode.TRAINING: replace(RATES[Mode.TRAINING], host_scale=1.3, tensor_feed=2.0),
    }
    made = [
        replace(item, run=replace(item.run, row=replace(item.run.row, latency_ms=item.predict_ms(true, kernels))))
        for item in items
    ]
    fitted = fit_published_rates(made, RATES, kernels)
    assert fitted[Mode.INFERENCE].host_scale == pytest.approx(0.5, rel=0.02)
    assert fitted[Mode.TRAINING].host_scale == pytest.approx(1.3, rel=0.02)
    assert fitted[Mode.TRAINING].tensor_feed == pytest.approx(2.0, rel=0.1)
    assert fitted[Mode.INFERENCE].stream == RATES[Mode.INFERENCE].stream
    assert np.abs(log_errors(made, fitted, kernels)).max() < 0.02


@pytest.fixture(scope="module")
def machines() -> list[PublishedItem]:
    """Small batches of image models and of BERT on three machines, before PyTorch 2.0."""
    cards = ("A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "GeForce RTX 3090")
    runs = [
        run
        for run in read_published_runs(FOLDER)[0]
        if run.row.source == "framework-tax"
        and run.device.name in cards
        and run.row.batch <= 32
        and run.row.model in ("torchvision:resnet50", "torchvision:resnet18", "google-bert/bert-base-uncased")
    ]
    graphs = read_graphs(runs, FOLDER)
    return [
        PublishedItem.of(run, CompiledGraphs.of([graphs[run.graph_key]], run.conditions, run.software)) for run in runs
    ]


def test_each_machine_has_a_host_of_its_own_and_their_middle_is_kept(machines: list[PublishedItem]) -> None:
    kernels, hosts = load_kernel_model(), [0.7, 1.0, 1.0 / 0.7]
    names = sorted({item.run.machine for item in machines})
    assert len(names) == 3
    made = []
    for item in machines:
        true = {
            mode: replace(rates, host_scale=hosts[names.index(item.run.machine)], convolution_host=1.7)
            for mode, rates in RATES.items()
        }
        row = replace(item.run.row, latency_ms=item.predict_ms(true, kernels))
        made.append(replace(item, run=replace(item.run, row=row)))
    fitted = fit_published_rates(made, RATES, kernels)
    assert fitted[Mode.INFERENCE].host_scale == pytest.approx(1.0, rel=0.05)
    assert fitted[Mode.INFERENCE].convolution_host == pytest.approx(1.7, rel=0.1)
    # Of training nothing is told.
    assert fitted[Mode.TRAINING].host_scale == RATES[Mode.TRAINING].host_scale


def test_what_no_row_tells_stays(items: list[PublishedItem]) -> None:
    steps = [item for item in items if item.run.conditions.mode is Mode.TRAINING]
    fitted = fit_published_rates(steps, RATES, load_kernel_model())
    assert fitted[Mode.TRAINING].host_scale != RATES[Mode.TRAINING].host_scale
    for name in ("host_scale", "convolution_host"):
        assert getattr(fitted[Mode.INFERENCE], name) == getattr(RATES[Mode.INFERENCE], name)


def test_the_command_changes_the_artefacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ARTEFACT_FOLDER.iterdir():
        shutil.copy(path, tmp_path)
    folder = tmp_path / "published"
    folder.mkdir()
    for path in FOLDER.glob("*.csv"):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.startswith("transformers-docs-bert,")]
        (folder / path.name).write_text("\n".join([head, *kept]) + "\n", encoding="utf-8")
    for path in FOLDER.glob("*.toml"):
        shutil.copy(path, folder)
    main(["--folder", str(folder), "--out", str(tmp_path)])
    training = Calibration.read(tmp_path / "physics_training.json")
    assert training.rates.host_scale != RATES[Mode.TRAINING].host_scale
    assert training.rates.stream == RATES[Mode.TRAINING].stream
    provenance = json.loads(json.dumps(training.provenance["published_rates"]))
    assert provenance["rows"] == 12
    assert provenance["mape_percent"]["after"] < provenance["mape_percent"]["before"]
    network = AdditiveArtefact.read(tmp_path / "additive_inference.json")
    assert network.rates.tensor_feed == training.rates.tensor_feed
