"""The DIPPM protocol from a file of labels to the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dippm
from dippm.api import DippmEvaluation
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import GraphSamples
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Graph, OpKind
from dippm.graph.fingerprint import fingerprint
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.training.pretraining import Pretraining
from dippm.training.settings import TrainingSettings

FAMILIES = ("narrow", "wide", "deep")


def make_graph(builder: Any, *, width: int, depth: int) -> Graph:
    values = builder.input(builder.N, 16)
    size = 16
    for _ in range(depth):
        weight = builder.weight(width, size)
        values = builder.node(OpKind.LINEAR, [values, weight], builder.N, width)
        values = builder.node(OpKind.RELU, [values], builder.N, width)
        size = width
    graph: Graph = builder.graph()
    return graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, new_builder: Callable[[], Any]) -> Path:
    """Labels of 24 chains of dense layers at two batches, and their graphs."""
    folder = tmp_path_factory.mktemp("labels")
    cache = GraphCache(folder / "graphs")
    labels = []
    for number in range(24):
        family = FAMILIES[number % 3]
        width, depth = (128 if family == "wide" else 32) + number, 6 if family == "deep" else 2
        graph = make_graph(new_builder(), width=width, depth=depth)
        for batch in (1, 8):
            recipe = Recipe(
                collection="test",
                family=family,
                architecture="test:chain",
                arguments={"width": width, "depth": depth},
                inputs=InputShapes(positional=(InputEntry(shape=(16,)),)),
                batch=batch,
            )
            measurement = Measurement(
                outcome=Outcome.OK,
                device="Test GPU",
                measured_at="",
                latency_ms=0.01 * depth + 1e-5 * batch * width * width,
                memory_mb=4000.0 + 100.0 * depth * batch,
                software=SoftwareStack(framework="torch 2.13.0"),
            )
            labels.append(Label(recipe=recipe, configuration=Configuration(batch=batch), measurement=measurement))
            cache.save(recipe.model_key, graph, fingerprint=fingerprint(graph))
    export_parquet(labels, folder / "labels.parquet")
    return folder


@dataclass
class Trainings:
    """Stands in for trainings: predictions that are off by a factor of model, epochs, seed and parts."""

    trained: list[TrainingSettings] = field(default_factory=list)
    first_epochs: list[int] = field(default_factory=list)

    def __call__(
        self,
        samples: GraphSamples,
        parts: npt.NDArray[np.int8],
        settings: TrainingSettings,
        folder: Path,
        *,
        pretraining: Pretraining | None,
        resume: bool,
    ) -> npt.NDArray[np.float64]:
        assert resume
        folder.mkdir(parents=True, exist_ok=True)
        self.trained.append(settings)
        self.first_epochs.append(0 if pretraining is None else pretraining.epochs)
        numbers = [len(settings.model), settings.epochs, settings.hidden, settings.seed, *parts.tolist()]
        return samples.targets * np.exp(np.random.default_rng(numbers).normal(0.0, 0.1, samples.targets.shape))


def evaluate(folder: Path, out: Path, **changes: Any) -> DippmEvaluation:
    settings: dict[str, Any] = {"epochs": 1, "long_epochs": 2, "hidden": 4, "leave_families_out": 2, "seed": 2}
    return dippm.evaluate_dippm(
        folder / "labels.parquet", out, cache=folder / "graphs", command="dippm evaluate", **settings | changes
    )


def test_the_report_is_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings()
    monkeypatch.setattr("dippm.training.train_model.predict_with", trainings)
    done = evaluate(folder, tmp_path, mixed_precision=True)
    assert {(s.model == "gbdt", s.mixed_precision) for s in trainings.trained} == {(False, True), (True, False)}
    assert [(s.model, s.epochs) for s in trainings.trained[:7]] == [
        *((model, 1) for model in ("pmgns", "gat", "gcn", "gin", "mlp", "gbdt")),
        ("pmgns", 2),
    ]
    assert {(s.hidden, s.seed, s.learning_rate) for s in trainings.trained} == {(4, 2, 0.003)}
    names = [path.relative_to(tmp_path).as_posix() for path in done.files]
    stem = "dippm_test-gpu-inference-fp32-nchw-eager"
    assert names[:3] == [f"{stem}.md", f"{stem}.html", f"{stem}.json"]
    page = done.files[0].read_text(encoding="utf-8")
    assert all(f"]({name})" in page for name in names[3:])
    assert len(names) == 8
    for words in (
        "Eq. 2 is the rule of A100-SXM4-40GB",
        "| command | dippm evaluate |",
        "SHA-256",
        "| width | 4 |",
        "| mixed precision | true |",
    ):
        assert words in page
    assert "https://" not in done.files[1].read_text(encoding="utf-8")
    assert json.loads(done.files[2].read_text(encoding="utf-8")) == json.loads(json.dumps(done.report.to_dict()))
    assert str(folder) not in page


def test_a_repeated_run_reads_its_trainings_back(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dippm.api.dippm_evaluation._write", lambda _report, _folder, **_: ())
    trainings = Trainings()
    monkeypatch.setattr("dippm.training.train_model.predict_with", trainings)
    first = evaluate(folder, tmp_path)
    count = len(trainings.trained)
    assert evaluate(folder, tmp_path).report == first.report
    assert len(trainings.trained) == count
    cut = next(tmp_path.glob("trainings/gat-*/predictions.npy"))
    cut.write_bytes(cut.read_bytes()[:100])
    assert evaluate(folder, tmp_path).report == first.report
    assert [settings.model for settings in trainings.trained[count:]] == ["gat"]


def test_networks_that_learn_something_first_are_kept_and_reported_apart(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings()
    monkeypatch.setattr("dippm.training.train_model.predict_with", trainings)
    plain = evaluate(folder, tmp_path)
    count = len(trainings.trained)
    done = evaluate(folder, tmp_path, pretrain=folder / "labels.parquet", pretrain_epochs=3)
    # What was kept of the others answers nothing here.
    assert trainings.first_epochs == [0] * count + [3] * count
    assert not set(done.files) & set(plain.files)
    page = done.files[0].read_text(encoding="utf-8")
    assert "Networks learned first from 48 rows of 'dippm' (Test GPU, torch 2.13.0) for 3 epochs." in page
    assert "learned first" not in plain.files[0].read_text(encoding="utf-8")


@pytest.mark.slow
def test_real_trainings_are_reproduced_by_their_seed(folder: Path, tmp_path: Path) -> None:
    report = evaluate(folder, tmp_path, leave_families_out=0).report
    assert (report.dataset.rows, report.dataset.models, report.dataset.families) == (48, 24, 3)
    assert [score.model for score in report.networks] == ["pmgns", "gat", "gcn", "gin", "mlp", "gbdt"]
    errors = [score.test_mean for score in report.networks]
    assert len(set(errors)) == len(errors)
    assert np.isfinite(errors).all()
    gone = [*tmp_path.glob("trainings/gat-*"), *tmp_path.glob("trainings/gbdt-*")]
    assert len(gone) == 4
    for training in gone:
        shutil.rmtree(training)
    assert evaluate(folder, tmp_path, leave_families_out=0).report == report
    assert all(training.is_dir() for training in gone)


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"leave_families_out": 1}, {"long_epochs": 0}, {"hidden": 0}])
def test_settings_are_checked_before_anything_is_read(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Got .*(0|1)") as caught:
        dippm.evaluate_dippm(tmp_path / "none.parquet", tmp_path, **wrong)  # type: ignore[arg-type]
    assert caught.value.code in {"evaluation.settings", "train.settings"}


def test_labels_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.evaluate_dippm(tmp_path / "none.parquet", tmp_path)
    assert caught.value.code == "labels.missing"
