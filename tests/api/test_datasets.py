"""The verbs on data sets, with a device that answers at once and the real store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from dippm import api
from dippm.api import datasets as verbs
from dippm.datasets.campaign import graph_hashes
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.label_store import LabelStore
from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.measuring import device_names, worker
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.protocol import Plan as CallPlan


class FakeWorker:
    busy_s = 0.0
    failing: ClassVar[set[int]] = set()
    limits: ClassVar[list[tuple[float, float]]] = []
    energy_shares: ClassVar[list[float]] = []

    def __init__(self, device: str, *, configuration_limit_s: float, plan: CallPlan) -> None:
        self.limits.append((configuration_limit_s, plan.budget_s))
        self.energy_shares.append(plan.energy_share)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for configuration in configurations:
            yield Measurement(
                outcome=Outcome.FAILED if configuration.batch in self.failing else Outcome.OK,
                device="",
                measured_at="2026-01-01T00:00:00+00:00",
                latency_ms=float(configuration.batch),
                memory_mb=100.0,
            )


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "failing", set())
    monkeypatch.setattr(FakeWorker, "limits", [])
    monkeypatch.setattr(FakeWorker, "energy_shares", [])
    monkeypatch.setattr(graph_hashes.GraphHashes, "add", lambda self, recipe: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "labels.sqlite"


def test_a_campaign_is_resumed_only_when_asked(store: Path) -> None:
    first = api.measure_collection("cpu-small", store=store, limit=20)
    assert first.measured >= 20
    with pytest.raises(UsageError) as caught:
        api.measure_collection("cpu-small", store=store, limit=40)
    assert caught.value.code == "campaign.not_resumed"
    second = api.measure_collection("cpu-small", store=store, limit=40, resume=True)
    assert second.found == first.measured
    # Another campaign may share the store without more ado.
    other = api.measure_collection("cpu-small", store=store, limit=5, modes=["training"], optimizers=["adam"])
    assert other.found == 0
    with LabelStore.open(store) as labels:
        assert len(labels) == first.measured + second.measured + other.measured


def test_energy_of_a_share_of_the_rows(store: Path) -> None:
    api.measure_collection("cpu-small", store=store, limit=1)
    api.measure_collection("cpu-small", store=store, limit=2, resume=True, energy_share=0.2)
    assert FakeWorker.energy_shares == [1.0, 0.2]
    with pytest.raises(UsageError, match=r"from 0 to 1\. Got 1\.5") as caught:
        api.measure_collection("cpu-small", store=store, limit=3, resume=True, energy_share=1.5)
    assert caught.value.code == "share.invalid"


def test_rows_that_failed_are_measured_again_when_asked(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = load_collection("cpu-small")[3].batch
    monkeypatch.setattr(FakeWorker, "failing", {batch})
    first = api.measure_collection("cpu-small", store=store, limit=20)
    failed = first.by_outcome["failed"]
    monkeypatch.setattr(FakeWorker, "failing", set())
    with pytest.raises(UsageError):
        api.measure_collection("cpu-small", store=store, limit=20, retry=["failed"])
    assert api.measure_collection("cpu-small", store=store, limit=20, resume=True, retry=["timed-out"]).measured == 0
    again = api.measure_collection("cpu-small", store=store, limit=20, resume=True, retry=["failed", "timed-out"])
    assert again.by_outcome["ok"] == again.measured >= failed >= 1
    assert again.found == first.measured - failed
    with LabelStore.open(store) as labels:
        assert {label.measurement.outcome for label in labels.labels()} == {Outcome.OK}
        assert len(labels) == again.planned


def test_rows_of_other_campaigns_are_not_retried(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWorker, "failing", set(range(1, 9)))
    training = api.measure_collection("cpu-small", store=store, limit=2, modes=["training"])
    assert training.by_outcome == {"failed": training.measured}
    api.measure_collection("cpu-small", store=store, limit=1)
    api.measure_collection("cpu-small", store=store, limit=1, resume=True, retry=["failed"])
    with LabelStore.open(store) as labels:
        assert len(labels) == training.measured + 1


def test_a_second_pass_measures_everything_once_more(store: Path) -> None:
    first = api.measure_collection("cpu-small", store=store, limit=20)
    with pytest.raises(UsageError) as caught:
        api.measure_collection("cpu-small", store=store, limit=20, pass_number=0)
    assert caught.value.code == "pass.invalid"
    second = api.measure_collection("cpu-small", store=store, limit=20, pass_number=2, resume=True)
    assert second.measured == 20 - first.repeats
    third = api.measure_collection("cpu-small", store=store, limit=20, pass_number=3)
    assert third.measured == 20
    with LabelStore.open(store) as labels:
        repeats = [label.repeat for label in labels.labels()]
    assert [repeats.count(number) for number in range(3)] == [20, 20, 20]


def test_the_limit_of_a_row_sets_the_time_of_its_calls(store: Path) -> None:
    api.measure_collection("cpu-small", store=store, limit=1)
    api.measure_collection("cpu-small", store=store, limit=1, resume=True, row_limit_s=20.0)
    assert FakeWorker.limits == [(120.0, 30.0), (20.0, 5.0)]


def test_graphs_are_read_unless_told_otherwise(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(graph_hashes.GraphHashes, "add", lambda self, recipe: asked.append(recipe))
    api.measure_collection("cpu-small", store=store, limit=2, graphs=False)
    assert asked == []
    api.measure_collection("cpu-small", store=store, limit=2, resume=True)
    assert len({recipe.model_key for recipe in asked}) == 2


def test_every_combination_with_a_meaning_is_measured(store: Path) -> None:
    api.measure_collection(
        "cpu-small",
        store=store,
        limit=1,
        modes=["inference", "training"],
        precisions=["fp32", "amp"],
        engines=["torch", "onnxruntime"],
        optimizers=["sgd", "adam"],
    )
    with LabelStore.open(store) as labels:
        found = {
            (
                label.configuration.engine.value,
                label.configuration.conditions.mode.value,
                label.configuration.conditions.precision.value,
                getattr(label.configuration.conditions.optimizer, "value", None),
            )
            for label in labels.labels()
        }
    expected: set[tuple[str, str, str, str | None]] = {
        (engine, "inference", precision, None)
        for engine, precision in (("torch", "fp32"), ("torch", "amp"), ("onnxruntime", "fp32"))
    }
    expected |= {("torch", "training", p, optimizer) for p in ("fp32", "amp") for optimizer in ("sgd", "adam")}
    assert found == expected


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_names, "describe_device", lambda _: "H200")


@pytest.mark.usefixtures("_gpu")
def test_steps_are_not_captured(store: Path) -> None:
    api.measure_collection(
        "cpu-small",
        store=store,
        device="cuda",
        limit=1,
        modes=["inference", "training"],
        runtimes=["eager", "cuda-graph"],
    )
    with LabelStore.open(store) as labels:
        rows = [(label.configuration.conditions, label.measurement) for label in labels.labels()]
    assert {(str(conditions.mode), str(conditions.runtime)) for conditions, _ in rows} == {
        ("inference", "eager"),
        ("inference", "cuda-graph"),
        ("training", "eager"),
    }


@pytest.mark.usefixtures("_gpu")
def test_onnxruntime_takes_no_runtime_of_pytorch(store: Path) -> None:
    api.measure_collection(
        "cpu-small",
        store=store,
        device="cuda",
        limit=1,
        precisions=["tf32"],
        engines=["torch", "onnxruntime"],
        runtimes=["eager", "cuda-graph"],
    )
    with LabelStore.open(store) as labels:
        every = [label.configuration for label in labels.labels()]
    found = {(str(each.engine), str(each.conditions.runtime)) for each in every}
    assert found == {("torch", "eager"), ("torch", "cuda-graph"), ("onnxruntime", "eager")}


def test_a_processor_captures_nothing(store: Path) -> None:
    with pytest.raises(UnsupportedError, match="CUDA graphs run on CUDA devices") as caught:
        api.measure_collection("cpu-small", store=store, limit=1, runtimes=["cuda-graph"])
    assert caught.value.code == "runtime.unsupported"
    assert not store.exists()
    report = api.measure_collection("cpu-small", store=store, limit=1, runtimes=["cuda-graph", "eager"])
    assert report.planned == 1


def test_onnxruntime_has_no_autocast(store: Path) -> None:
    with pytest.raises(UnsupportedError, match="no precision amp"):
        api.measure_collection("cpu-small", store=store, limit=1, engines=["onnxruntime"], precisions=["amp"])
    assert not store.exists()


def test_onnxruntime_alone_does_not_train(store: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        api.measure_collection("cpu-small", store=store, limit=1, modes=["training"], engines=["onnxruntime"])
    assert caught.value.code == "engine.unsupported"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"limit": 0}, "limit.invalid"),
        ({"modes": ["sleeping"]}, "mode.unknown"),
        ({"engines": ["tvm"]}, "engine.unknown"),
        ({"collection": "no-such"}, "collection.unknown"),
        ({"device": "tpu"}, "device.unavailable"),
        ({"retry": ["ok"]}, "retry.unknown"),
    ],
)
def test_wrong_options_leave_no_store_behind(options: dict[str, Any], code: str, store: Path) -> None:
    collection = options.pop("collection", "cpu-small")
    with pytest.raises(DippmError) as caught:
        api.measure_collection(collection, store=store, **options)
    assert caught.value.code == code
    assert not store.exists()


def test_labels_travel_through_a_file_into_another_store(store: Path, tmp_path: Path) -> None:
    report = api.measure_collection("cpu-small", store=store, limit=9)
    path, other = tmp_path / "labels.parquet", tmp_path / "other.sqlite"
    assert api.export_labels(store, path) == report.measured
    assert api.import_labels(path, other) == (report.measured, report.measured)
    assert api.import_labels(str(path), str(other)) == (report.measured, 0)
    assert api.label_statistics(other) == api.label_statistics(path)
    assert api.label_statistics(path).rows == report.measured
    assert all(drawn.stat().st_size > 0 for drawn in api.plot_labels(path, tmp_path / "plots"))


def test_labels_that_are_not_there_are_not_made(store: Path, tmp_path: Path) -> None:
    for verb in (api.label_statistics, lambda target: api.export_labels(target, tmp_path / "out.parquet")):
        with pytest.raises(UsageError) as caught:
            verb(store)
        assert caught.value.code == "labels.missing"
    assert not store.exists()


def test_an_empty_file_stays_empty(store: Path) -> None:
    store.touch()
    with pytest.raises(UsageError, match="is empty") as caught:
        api.label_statistics(store)
    assert caught.value.code == "labels.missing"
    assert not store.stat().st_size


@pytest.mark.data
def test_published_tables_are_imported(store: Path) -> None:
    read, added = api.import_labels("whole-models", store)
    assert 0 < added <= read
    assert api.import_labels("whole-models", store) == (read, 0)


def test_collections_are_listed_with_their_counts() -> None:
    infos = {info.name: info for info in api.list_recipes()}
    assert infos["dippm-zoo"].recipes == 10_508
    for name in ("dippm-zoo", "cpu-small"):
        recipes = load_collection(name)
        assert sum(infos[name].families.values()) == len(recipes) == infos[name].recipes
        assert infos[name].models == len({recipe.model_key for recipe in recipes})


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("9m", 540), ("1.5h", 5400), (" 2 H ", 7200), ("45", 45)])
def test_durations(text: str, seconds: float) -> None:
    assert verbs.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3s", "0m", "9 minutes", "1e3s", "nan"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        verbs.parse_duration(text)
    assert caught.value.code == "duration.invalid"
