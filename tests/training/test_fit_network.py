"""A training: resume, seeds, scaling, what goes wrong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from dippm.datasets.graph_samples import Part
from dippm.errors import DippmError, UsageError
from dippm.features.scaling import Scaling
from dippm.training.epochs import TrainingJob
from dippm.training.fit_network import EpochReport, fit_network


def same_weights(first, second) -> bool:
    return all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


@pytest.fixture(name="whole_folder", scope="module")
def _whole_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(name="whole", scope="module")
def _whole(samples, parts, settings, whole_folder):
    return fit_network(samples, parts, settings, whole_folder)


def test_resume_is_a_run_without_a_break(samples, parts, settings, tmp_path, whole) -> None:
    begun = fit_network(samples, parts, replace(settings, epochs=2), tmp_path / "run")
    assert begun.epochs == 2
    assert not same_weights(begun, whole)
    resumed = fit_network(samples, parts, settings, tmp_path / "run", resume=True)
    assert resumed.epochs == whole.epochs == 4
    assert resumed.best_epoch == whole.best_epoch
    assert same_weights(resumed, whole)
    assert np.array_equal(resumed.predictions, whole.predictions)


def test_resume_after_an_interrupt_within_an_epoch(samples, parts, settings, tmp_path, whole, monkeypatch) -> None:
    from dippm.training import graph_network

    steps = 0
    loss = graph_network.masked_huber_loss

    def interrupted(*arguments):
        nonlocal steps
        steps += 1
        if steps == 16:
            raise KeyboardInterrupt
        return loss(*arguments)

    seen: list[EpochReport] = []
    with monkeypatch.context() as patch:
        patch.setattr(graph_network, "masked_huber_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit_network(samples, parts, settings, tmp_path / "run", on_epoch=seen.append)
    assert 1 <= len(seen) < 4
    resumed = fit_network(samples, parts, settings, tmp_path / "run", resume=True, on_epoch=seen.append)
    assert [report.epoch for report in seen] == [1, 2, 3, 4]
    assert same_weights(resumed, whole)


def test_resume_goes_on_after_the_last_epoch_not_after_the_best(samples, parts, settings, tmp_path) -> None:
    # At this rate the error jumps up and down.
    wild = replace(settings, epochs=8, learning_rate=0.3)
    seen: list[EpochReport] = []
    first = fit_network(samples, parts, wild, tmp_path, on_epoch=seen.append)
    errors = [report.val_mape_percent for report in seen]
    assert first.best_epoch == 1 + int(np.argmin(errors)) < first.epochs == 8
    fit_network(samples, parts, replace(wild, epochs=10), tmp_path, resume=True, on_epoch=seen.append)
    assert [report.epoch for report in seen] == list(range(1, 11))


@pytest.mark.parametrize("kept", [0, 500])
def test_a_checkpoint_that_was_cut_off_is_named(samples, parts, settings, tmp_path, whole, whole_folder, kept) -> None:
    shutil.copytree(whole_folder, tmp_path / "cut")
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:kept])
    longer = replace(settings, epochs=5)
    with pytest.raises(DippmError, match=r"last\.ckpt' cannot be read: .+ Remove it") as caught:
        fit_network(samples, parts, longer, tmp_path / "cut", resume=True)
    assert caught.value.code == "checkpoint.unreadable"
    last.unlink()
    assert fit_network(samples, parts, longer, tmp_path / "cut", resume=True).epochs == 5


def test_a_finished_run_gives_its_result_again(samples, parts, settings, tmp_path, whole, whole_folder) -> None:
    shutil.copytree(whole_folder, tmp_path / "whole")
    again = fit_network(samples, parts, settings, tmp_path / "whole", resume=True)
    assert same_weights(again, whole)
    assert (again.epochs, again.best_epoch) == (whole.epochs, whole.best_epoch)


def test_a_finished_run_runs_nothing(samples, parts, settings, tmp_path, monkeypatch) -> None:
    short = replace(settings, epochs=2)
    first = fit_network(samples, parts, short, tmp_path)
    assert (first.epochs, first.epochs_before) == (2, 0)
    assert first.duration_s > 0
    monkeypatch.setattr(TrainingJob, "run", lambda *_: pytest.fail("ran"))
    for asked in (2, 1):
        again = fit_network(samples, parts, replace(short, epochs=asked), tmp_path, resume=True)
        assert (again.epochs, again.epochs_before) == (2, 2)
        assert (again.best_epoch, again.duration_s, again.device) == (first.best_epoch, first.duration_s, "cpu")
        assert same_weights(again, first)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["epochs"] == 2


def test_durations_of_calls_add_up(samples, parts, settings, tmp_path) -> None:
    first = fit_network(samples, parts, replace(settings, epochs=3), tmp_path)
    longer = fit_network(samples, parts, replace(settings, epochs=4), tmp_path, resume=True)
    assert (longer.epochs, longer.epochs_before) == (4, 3)
    assert longer.duration_s > first.duration_s
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["epochs"] == 4


def test_seeds(samples, parts, settings, tmp_path, whole) -> None:
    state = torch.random.get_rng_state()
    torch.manual_seed(99)
    again = fit_network(samples, parts, settings, tmp_path / "again")
    torch.random.set_rng_state(state)
    other = fit_network(samples, parts, replace(settings, seed=1), tmp_path / "other")
    assert same_weights(again, whole)
    assert not same_weights(other, whole)


def test_training_leaves_the_random_state_alone(samples, parts, settings, tmp_path) -> None:
    before = torch.random.get_rng_state()
    fit_network(samples, parts, replace(settings, epochs=1, learning_rate="auto"), tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scaling_is_of_the_training_split_alone(samples, parts, settings, tmp_path) -> None:
    changed = replace(
        samples,
        node_features=samples.node_features.copy(),
        static_features=samples.static_features.copy(),
        targets=samples.targets.copy(),
    )
    for index in np.flatnonzero(parts != Part.TRAINING):
        changed.node_features[samples.node_offsets[index] : samples.node_offsets[index + 1]] += 3
        changed.static_features[index] *= 7
        changed.targets[index] *= 100
    settings = replace(settings, epochs=1)
    scalings = [
        fit_network(data, parts, settings, tmp_path / str(place)).scaling.to_dict()
        for place, data in enumerate((samples, changed))
    ]
    assert scalings[0] == scalings[1]
    everything = Scaling.fit(changed.node_features, changed.static_features, changed.targets)
    assert everything.to_dict() != scalings[0]


def test_it_learns(samples, parts, settings, tmp_path) -> None:
    fitted = fit_network(samples, parts, replace(settings, epochs=30, hidden=32, dropout=0.0), tmp_path)
    chosen = parts == Part.TRAINING
    errors = np.abs(fitted.predictions[chosen] / samples.targets[chosen] - 1.0)
    assert np.nanmean(errors, axis=0).max() < 0.15


def test_mixed_precision(samples, parts, settings, tmp_path, whole) -> None:
    """On a CPU in bf16: other numbers, the same lesson, and a resume to the bit."""
    mixed = replace(settings, mixed_precision=True, accelerator="cpu")
    through = fit_network(samples, parts, mixed, tmp_path / "through")
    assert not same_weights(through, whole)
    assert all(weight.dtype == np.float32 for weight in through.weights.values())
    np.testing.assert_allclose(np.log(through.predictions), np.log(whole.predictions), atol=0.1)
    fit_network(samples, parts, replace(mixed, epochs=2), tmp_path / "broken")
    assert same_weights(fit_network(samples, parts, mixed, tmp_path / "broken", resume=True), through)


def test_patience(samples, parts, settings, tmp_path) -> None:
    stopped = fit_network(samples, parts, replace(settings, epochs=40, learning_rate=0.9, patience=2), tmp_path)
    assert stopped.epochs == stopped.best_epoch + 2 < 40


def test_a_run_that_patience_ended_goes_on_with_more_of_it(samples, parts, settings, tmp_path) -> None:
    wild = replace(settings, epochs=40, learning_rate=0.9, patience=2)
    stopped = fit_network(samples, parts, wild, tmp_path)
    again = fit_network(samples, parts, wild, tmp_path, resume=True)
    assert again.epochs == again.epochs_before == stopped.epochs
    more = fit_network(samples, parts, replace(wild, patience=4), tmp_path, resume=True)
    assert more.epochs == min(more.best_epoch + 4, 40) > stopped.epochs


def test_logs_and_files(samples, parts, settings, tmp_path) -> None:
    fit_network(samples, parts, replace(settings, learning_rate="auto"), tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["data"] == samples.key
    assert 1e-6 < run["learning_rate"] < 0.1
    assert run["settings"]["learning_rate"] == "auto"
    header = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert {"epoch", "train_loss", "val_loss", "val_mape", "val_mape_energy_j"} <= set(header.split(","))
    assert list((tmp_path / "logs" / "version_0").glob("events.out.tfevents.*"))
    checkpoints = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    assert checkpoints[1] == "last.ckpt"
    # A resume keeps to the rate that was found.
    resumed = fit_network(samples, parts, replace(settings, epochs=5, learning_rate="auto"), tmp_path, resume=True)
    assert resumed.learning_rate == run["learning_rate"]


@pytest.mark.slow
def test_two_devices(samples, parts, settings, tmp_path, monkeypatch) -> None:
    # A process of its own imports Lightning before dippm can help a torchvision that was built for another torch.
    (tmp_path / "sitecustomize.py").write_text(
        "from dippm.frontends.torch.torchvision_ops import import_torchvision_ops\nimport_torchvision_ops()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fitted = fit_network(samples, parts, replace(settings, epochs=2, devices=2), tmp_path)
    assert fitted.epochs == 2
    assert np.isfinite(fitted.predictions).all()


def test_the_rate_of_one_cycle_goes_on_where_it_was(samples, parts, settings, tmp_path) -> None:
    cycle = replace(settings, epochs=3, schedule="one-cycle", learning_rate=0.01)
    whole = fit_network(samples, parts, cycle, tmp_path / "whole")
    stored = torch.load(tmp_path / "whole" / "checkpoints" / "last.ckpt", weights_only=True)
    # The last steps are taken at a small part of the rate.
    assert stored["optimizer_states"][0]["param_groups"][0]["lr"] < 0.05 * cycle.learning_rate

    def interrupt(report: EpochReport) -> None:
        if report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_network(samples, parts, cycle, tmp_path / "cut", on_epoch=interrupt)
    resumed = fit_network(samples, parts, cycle, tmp_path / "cut", resume=True)
    assert same_weights(resumed, whole)


def test_folder_of_a_run(samples, parts, settings, tmp_path) -> None:
    short = replace(settings, epochs=1)
    fit_network(samples, parts, short, tmp_path)
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, short, tmp_path)
    assert caught.value.code == "train.exists"
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, replace(short, hidden=9), tmp_path, resume=True)
    assert caught.value.code == "train.other_run"
    with pytest.raises(UsageError) as caught:
        fit_network(replace(samples, key="other"), parts, short, tmp_path, resume=True)
    assert caught.value.code == "train.other_run"
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, short, tmp_path, resume=True)
    assert caught.value.code == "train.other_run"


def test_refusals(samples, parts, settings, tmp_path, monkeypatch) -> None:
    with pytest.raises(UsageError) as caught:
        fit_network(samples, np.zeros_like(parts), settings, tmp_path)
    assert caught.value.code == "train.too_few"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, replace(settings, accelerator="gpu"), tmp_path)
    assert caught.value.code == "train.no_gpu"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        fit_network(samples, parts, settings, tmp_path / "file" / "run")
    assert caught.value.code == "train.unwritable"


def test_divergence_is_an_error(samples, parts, settings, tmp_path) -> None:
    broken = replace(samples, static_features=samples.static_features.copy())
    broken.static_features[parts == Part.VALIDATION] = np.nan
    with pytest.raises(DippmError) as caught:
        fit_network(broken, parts, settings, tmp_path)
    assert caught.value.code == "train.diverged"


def test_patience_is_written_down_where_earlier_versions_wrote_it() -> None:
    from dippm.training.epochs import _Patience
    from dippm.training.lightning import pl

    given = {"monitor": "val", "patience": 3}
    assert _Patience(**given).state_key == pl.callbacks.EarlyStopping(**given).state_key
