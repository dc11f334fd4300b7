"""``dippm train`` on made-up labels of small networks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import dippm
from dippm.cli import main, progress
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.errors import UnsupportedError, UsageError

_QUICK = ("--epochs", "2", "--hidden", "4", "--lr", "0.01", "--accelerator", "cpu")


@pytest.fixture(name="data", scope="module")
def _data(labelled_models: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    labels, cache = labelled_models
    path = tmp_path_factory.mktemp("labels") / "labels.parquet"
    export_parquet(labels, path)
    return "--data", str(path), "--cache", str(cache)


def test_json(
    data: tuple[str, ...],
    labelled_models: tuple[list[Label], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train", *data, *_QUICK, "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert answer["model"] == "pmgns"
    assert (answer["epochs"], answer["learning_rate"]) == (2, 0.01)
    assert answer["mape_percent"].keys() == {"training", "validation", "test"}
    assert answer["mape_percent"]["test"].keys() == {"memory_mb", "latency_ms", "energy_j", "mean"}
    assert (tmp_path / "model.json").is_file()
    assert (tmp_path / "model.safetensors").is_file()
    cached = GraphCache(data[3]).load(labelled_models[0][0].recipe.model_key, batch=2)
    assert cached is not None
    (found,) = dippm.load_predictor(tmp_path).predict(cached.graph, batches=[2])
    assert None not in (found.memory_mb, found.latency_ms, found.energy_j)
    # A second time into the same folder is a slip; going on is not.
    assert main(words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "train.exists"
    assert main([*words, "--resume", "--epochs", "3"]) == 0
    longer = json.loads(capsys.readouterr().out)
    assert (longer["epochs"], longer["epochs_before"]) == (3, 2)
    assert longer["duration_s"] > answer["duration_s"]


def test_other_labels_are_learned_first(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *data, *_QUICK, "--pretrain", data[1], "--pretrain-epochs", "3", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    first = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))["provenance"]["pretraining"]
    assert (first["sources"], first["epochs"]) == (["dippm"], 3)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ((), "More --epochs than 2 go on."),
        (("--schedule", "one-cycle"), "train in another folder"),
        (("--patience", "1", "--lr", "0.9", "--epochs", "20"), "a larger --patience goes on"),
    ],
)
def test_a_training_that_has_ended_says_so(
    options: tuple[str, ...],
    cure: str,
    data: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train", *data, *_QUICK, *options, "--out", str(tmp_path)]
    assert main(words) == 0
    assert "had ended already" not in capsys.readouterr().err
    manifest = (tmp_path / "model.json").read_text()
    assert main([*words, "--resume"]) == 0
    said = capsys.readouterr().err
    assert "This training had ended already, after" in said
    assert cure in said
    assert (tmp_path / "model.json").read_text() == manifest


@pytest.mark.parametrize("model", ["mlp", "gbdt"])
def test_columns(model: str, data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = _QUICK if model == "mlp" else ()
    assert main(["train", *data, *settings, "--model", model, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    header, *rows = (line.split("\t") for line in captured.out.splitlines())
    assert header == ["split", "metric", "mape_percent", "samples", "models"]
    assert [row[:2] for row in rows[:4]] == [
        ["training", name] for name in ("memory_mb", "latency_ms", "energy_j", "mean")
    ]
    assert len(rows) == 12
    assert all(float(row[2]) > 0 for row in rows)
    assert f"{model} is in {tmp_path}; predictions come from pmgns alone" in captured.err


def test_table(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(["train", *data, *_QUICK, "--model", "mlp", "--out", str(tmp_path)]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert any(line.split()[:3] == ["training", "validation", "test"] for line in lines)
    assert any(line.split()[:1] == ["latency_ms"] and len(line.split()) == 4 for line in lines)


def test_a_pipe_is_told_early_what_is_under_way(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.0)
    assert main(["train", *data, "--model", "gbdt", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith("models: reading labels, then training ...\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--lr", "fast"), "train.settings"),
        (("--model", "resnet"), "train.settings"),
        (("--edges", "none"), "edges.unknown"),
        (("--mode", "sleeping"), "mode.unknown"),
        (("--optimizer", "adam"), "optimizer.unused"),
        (("--model", "gbdt", "--mixed-precision"), "mixed_precision.unused"),
        (("--model", "gbdt", "--epochs", "20"), "option.unused"),
        (("--precision", "amp"), "labels.none"),
        (("--data", "nowhere.parquet"), "labels.missing"),
        (("--pretrain", "nowhere.parquet"), "labels.missing"),
        (("--workers", "2"), "train.workers"),
        (("--cluster", "auto"), "train.workers"),
        (("--cluster", "auto", "--workers", "2", "--devices", "2"), "train.workers"),
    ],
)
def test_wrong_use(
    words: tuple[str, ...], code: str, data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *data, "--out", str(tmp_path / "out"), *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not (tmp_path / "out").exists()


def test_as_a_call(data: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graphs: list[tuple[int, int]] = []
    epochs: list[dippm.EpochReport] = []
    report = dippm.train(
        "mlp",
        data=data[1],
        cache=data[3],
        epochs=2,
        hidden=4,
        learning_rate=0.01,
        accelerator="cpu",
        on_graph=lambda done, total: graphs.append((done, total)),
        on_epoch=epochs.append,
    )
    assert report.folder == str(Path("dippm-trained") / "mlp")
    assert Path(report.folder, "model.json").is_file()
    with pytest.raises(UnsupportedError, match="pmgns"):
        dippm.load_predictor(report.folder)
    assert [each.epoch for each in epochs] == [1, 2]
    with pytest.raises(UsageError, match="learning rate"):
        dippm.train(data=data[1], learning_rate="quick")


def test_without_ray_the_error_names_the_extra(
    data: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["train", *data, *_QUICK, "--out", str(tmp_path / "out"), "--cluster", "auto", "--workers", "2", "--json"]
    assert main(words) == 5
    assert "dippm[ray]" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Interrupted. The same command with --resume goes on.\n"),
        (("--resume",), "Interrupted. The same command goes on.\n"),
        (("--model", "gbdt"), ""),
    ],
)
def test_an_interruption_says_how_to_go_on(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dippm.api.train", interrupt)
    assert main(["train", "--data", "labels.parquet", *words]) == 130
    assert capsys.readouterr().err == said
