"""The DNNPerf protocol from a file of labels to the report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dippm
from dippm.api import DnnperfEvaluation
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.datasets.training_samples import TrainingSamples
from dippm.errors import UsageError
from dippm.models.dnnperf_registry import DNNPERF_MODELS
from dippm.training.dnnperf import DnnperfTrainingSettings


@pytest.fixture(scope="module")
def data(training_labels: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of labels, and the cache of their graphs."""
    labels, cache = training_labels
    path = tmp_path_factory.mktemp("labels") / "labels.parquet"
    export_parquet(labels, path)
    return path, cache


@dataclass
class Trainings:
    """Stands in for trainings: predictions that are off by a factor of model and seed."""

    trained: list[DnnperfTrainingSettings] = field(default_factory=list)

    def __call__(
        self,
        samples: TrainingSamples,
        parts: npt.NDArray[np.int8],
        settings: DnnperfTrainingSettings,
        folder: Path,
        *,
        resume: bool,
    ) -> npt.NDArray[np.float64]:
        assert resume
        folder.mkdir(parents=True, exist_ok=True)
        self.trained.append(settings)
        noise = np.random.default_rng([len(settings.model), settings.seed, *parts.tolist()]).normal(
            0.0, 0.1, samples.targets.shape
        )
        return np.where(np.isfinite(samples.targets), samples.targets, 1.0) * np.exp(noise)


def evaluate(data: tuple[Path, Path], out: Path, **changes: Any) -> DnnperfEvaluation:
    settings: dict[str, Any] = {"epochs": 2, "hidden": 4, "leave_families_out": 2, "seed": 2}
    return dippm.evaluate_dnnperf(data[0], out, cache=data[1], command="dippm evaluate", **settings | changes)


def test_the_report_is_written(data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    trainings = Trainings()
    monkeypatch.setattr("dippm.training.dnnperf.predict_steps", trainings)
    done = evaluate(data, tmp_path, mixed_precision=True)
    assert {(s.model == "gbdt", s.mixed_precision) for s in trainings.trained} == {(False, True), (True, False)}
    assert [settings.model for settings in trainings.trained] == [*DNNPERF_MODELS, *(["anee", "gbdt"] * 2)]
    assert {(s.hidden, s.seed, s.epochs, s.patience) for s in trainings.trained} == {(4, 2, 2, 2)}
    stem = "dnnperf_processor-training-fp32-nchw-eager-momentum"
    names = [path.relative_to(tmp_path).as_posix() for path in done.files]
    assert names[:3] == [f"{stem}.md", f"{stem}.html", f"{stem}.json"]
    page = done.files[0].read_text(encoding="utf-8")
    assert all(f"]({name})" in page for name in names[3:])
    assert len(names) == 5
    for words in (
        "| command | dippm evaluate |",
        "SHA-256",
        "| width | 4 |",
        "| mixed precision | true |",
        "| schedule of the learning rate | one-cy",
    ):
        assert words in page
    assert "https://" not in done.files[1].read_text(encoding="utf-8")
    assert json.loads(done.files[2].read_text(encoding="utf-8")) == json.loads(json.dumps(done.report.to_dict()))
    assert str(data[0].parent) not in page


def test_a_repeated_run_reads_its_trainings_back(
    data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dippm.api.dnnperf_evaluation._write", lambda _report, _folder: ())
    trainings = Trainings()
    monkeypatch.setattr("dippm.training.dnnperf.predict_steps", trainings)
    first = evaluate(data, tmp_path)
    count = len(trainings.trained)
    assert evaluate(data, tmp_path).report == first.report
    assert len(trainings.trained) == count
    cut = next(tmp_path.glob("trainings/arnn-*/predictions.npy"))
    cut.write_bytes(cut.read_bytes()[:100])
    assert evaluate(data, tmp_path).report == first.report
    assert [settings.model for settings in trainings.trained[count:]] == ["arnn"]


@pytest.mark.slow
def test_real_trainings(data: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = evaluate(data, tmp_path, epochs=1, hidden=16, leave_families_out=0).report
    assert [score.model for score in (*report.comparison, *report.ablation)] == list(DNNPERF_MODELS)
    errors = [score.test["overall"]["latency_ms"].mre_percent for score in (*report.comparison, *report.ablation)]
    assert np.isfinite(errors).all()
    assert len(set(errors)) == len(errors)


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"leave_families_out": 1}, {"epochs": 0}, {"hidden": 0}])
def test_settings_are_checked_before_anything_is_read(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Got .*(0|1)") as caught:
        dippm.evaluate_dnnperf(tmp_path / "none.parquet", tmp_path, **wrong)  # type: ignore[arg-type]
    assert caught.value.code in {"evaluation.settings", "train.settings"}


def test_labels_that_are_not_of_training_are_none(labelled_models: tuple[list[Label], Path], tmp_path: Path) -> None:
    labels, cache = labelled_models
    export_parquet(labels, tmp_path / "labels.parquet")
    with pytest.raises(UsageError) as caught:
        dippm.evaluate_dnnperf(tmp_path / "labels.parquet", tmp_path, cache=cache)
    assert caught.value.code == "labels.none"
