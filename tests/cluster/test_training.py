"""Training on two workers of a Ray cluster: the training of one process at the same batch, and one that survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dippm
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import Part, assign_parts, build_samples
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.errors import UsageError
from dippm.predictors.network_artefact import read_weights
from dippm.training.fit_network import FittedNetwork, fit_network
from dippm.training.settings import TrainingSettings
from dippm.training.train_model import train_model

LIMIT_S = 280
# All of the training split in one step, on one worker or on two: the mean of two halves' gradients is the whole's.
TRAINING = 22
SETTINGS = TrainingSettings(
    hidden=8, epochs=6, batch_size=TRAINING, learning_rate=0.01, dropout=0.0, patience=50, accelerator="cpu"
)


@pytest.fixture(name="complete", scope="module")
def _complete(labelled_models: tuple[list[Label], Path]) -> tuple[list[Label], Path]:
    """Labels with all metrics: a mean over those that are there is not the mean of two such means."""
    labels, cache = labelled_models
    return [label for label in labels if label.measurement.energy_j is not None], cache


@pytest.fixture(name="alone", scope="module")
def _alone(complete: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory) -> FittedNetwork[Any]:
    """The same training in this process."""
    samples = build_samples(*complete)
    parts = assign_parts(samples)
    assert (parts == Part.TRAINING).sum() == TRAINING
    return fit_network(samples, parts, SETTINGS, tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workers_train_a_predictor_like_one_process_though_one_is_killed(
    two_nodes: Any, complete: tuple[list[Label], Path], alone: FittedNetwork[Any], tmp_path: Path
) -> None:
    labels, cache = complete
    export_parquet(labels, tmp_path / "labels.parquet")
    journal = tmp_path / "journal.txt"
    words = ["train", "--data", str(tmp_path / "labels.parquet"), "--cache", str(cache), "--out", str(tmp_path / "out")]
    words += f"--hidden 8 --epochs 6 --batch-size {TRAINING // 2} --lr 0.01 --dropout 0 --accelerator cpu".split()
    words += ["--cluster", two_nodes.address, "--workers", "2", "--json"]
    program = str(Path(__file__).with_name("clustered_training.py"))
    process = subprocess.Popen(
        [sys.executable, program, str(journal), "0.2", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + LIMIT_S
    while len(steps := steps_in(journal)) < 8:
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(steps[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["epochs"], report["best_epoch"], report["device"]) == (6, alone.best_epoch, "cpu")
    assert all(f"{epoch} of 6 epochs, validation MAPE" in err for epoch in range(1, 7)), err
    weights = read_weights(tmp_path / "out")
    assert weights.keys() == alone.weights.keys()
    for name, values in alone.weights.items():
        np.testing.assert_allclose(weights[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    cached = GraphCache(cache).load(labels[0].recipe.model_key, batch=2)
    assert cached is not None
    (found,) = dippm.load_predictor(tmp_path / "out").predict(cached.graph, batches=[2])
    assert None not in (found.memory_mb, found.latency_ms, found.energy_j)
    # What Ray kept beside the checkpoints is gone.
    assert not (tmp_path / "out" / "ray").exists()
    # Two workers, six epochs of one step each, and what was lost of one epoch.
    assert 12 < len(steps_in(journal)) <= 12 + 2 * 2
    assert len(set(steps_in(journal))) > 2


def test_trees_are_not_divided(labelled_models: tuple[list[Label], Path], tmp_path: Path) -> None:
    samples = build_samples(*labelled_models)
    with pytest.raises(UsageError) as caught:
        train_model(samples, replace(SETTINGS, model="gbdt"), tmp_path, run_epochs=lambda *_: pytest.fail("ran"))
    assert caught.value.code == "train.not_divided"


def steps_in(journal: Path) -> list[int]:
    """Ids of the processes, one for each step."""
    return [int(line) for line in journal.read_text(encoding="utf-8").split()] if journal.exists() else []
