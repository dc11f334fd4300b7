"""The epochs of a training, here and elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from dippm.errors import UsageError
from dippm.training.epochs import OnEpoch, TrainingJob, TrainingRun, is_on_gpu
from dippm.training.fit_network import fit_network


def test_epochs_that_are_run_elsewhere_give_the_same_network(samples, parts, settings, tmp_path) -> None:
    short = replace(settings, epochs=2)
    here = fit_network(samples, parts, short, tmp_path / "here")

    told: list[int] = []

    def elsewhere(job: TrainingJob, on_epoch: OnEpoch | None) -> TrainingRun:
        travelled = pickle.loads(pickle.dumps(job))
        assert travelled.last == tmp_path / "there" / "checkpoints" / "last.ckpt"
        return replace(travelled.run(on_epoch), device="far away")

    there = fit_network(
        samples,
        parts,
        short,
        tmp_path / "there",
        run_epochs=elsewhere,
        on_epoch=lambda report: told.append(report.epoch),
    )
    assert told == [1, 2]
    assert (there.epochs, there.best_epoch, there.device) == (2, here.best_epoch, "far away")
    assert all(np.array_equal(here.weights[name], there.weights[name]) for name in here.weights)
    assert np.array_equal(here.predictions, there.predictions)


def test_devices_elsewhere_are_not_looked_for_here(samples, parts, settings, tmp_path) -> None:
    gpu = replace(settings, accelerator="gpu", devices=64)
    assert not is_on_gpu(replace(settings, accelerator="cpu"))

    class ReachedError(Exception):
        pass

    def elsewhere(job: TrainingJob, _on_epoch: OnEpoch | None) -> TrainingRun:
        assert job.settings.devices == 64
        raise ReachedError

    with pytest.raises(ReachedError):
        fit_network(samples, parts, gpu, tmp_path, run_epochs=elsewhere)


def test_devices_here_are(samples, parts, settings, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, replace(settings, accelerator="gpu"), tmp_path)
    assert caught.value.code == "train.no_gpu"
