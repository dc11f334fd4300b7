from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api import sweep_rows
from dippm.api.loading import load
from dippm.api.question import Question
from dippm.api.sweep_rows import SweepTask, decode_rows, encode_rows, fail_task, make_schema, predict_task
from dippm.api.sweep_settings import SweepSettings
from dippm.api.sweeping import sweep
from dippm.graph import Graph, OpKind

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def make_settings(*batches: int) -> SweepSettings:
    return SweepSettings.of(Question(), batch=batches or 1, device="A100")


def test_a_row_says_what_predict_says(graph_files: list[str], tmp_path: Path) -> None:
    report = sweep(
        graph_files[:2], out=tmp_path / "t.parquet", batch=[8, 1], device=["A100", "T4"], precision="amp", jobs=1
    )
    assert (report.models, report.rows, report.errors, report.failures) == (2, 8, 0, ())
    rows = read(tmp_path / "t.parquet")
    assert [(row["model"], row["batch"], row["device"]) for row in rows] == [
        (model, batch, device)
        for model in graph_files[:2]
        for batch in (8, 1)
        for device in (dippm.find_device("A100").name, dippm.find_device("T4").name)
    ]
    for row in rows:
        answer = dippm.predict(row["model"], batch=row["batch"], device=row["device"], precision="amp")
        said: dict[str, Any] = answer.to_dict()
        for name in ("mode", "precision", "layout", "runtime", "software", "macs", "latency_ms", "energy_j",
                     "memory_mb", "mig"):  # fmt: skip
            assert row[name] == said[name]
        assert row["optimizer"] is row["accumulation"] is row["checkpointing"] is None
        for name, word in (("latency_ms", "latency"), ("energy_j", "energy"), ("memory_mb", "memory")):
            assert [row[f"{word}_low"], row[f"{word}_high"]] == said["intervals"][name]
        assert (row["framework"], row["nodes"], row["parameters"]) == (
            answer.model.framework,
            answer.model.nodes,
            answer.model.parameters,
        )
        assert row["warnings"] == list(answer.warnings)
        assert (row["predictor"], row["predictor_version"]) == (answer.predictor.name, answer.predictor.version)
        assert (row["status"], row["error_code"], row["error"], row["step_time_ms"]) == ("ok", None, None, None)


def test_training_has_a_step_time(graph_files: list[str], tmp_path: Path) -> None:
    sweep(graph_files[0], out=tmp_path / "t.parquet", mode="training", optimizer="adam", jobs=1)
    (row,) = read(tmp_path / "t.parquet")
    assert row["mode"] == "training"
    assert row["step_time_ms"] == row["latency_ms"] > 0


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_row_says_what_was_asked_also_where_it_is_refused(graph_files: list[str], tmp_path: Path, name: str) -> None:
    asked: dict[str, Any] = {"optimizer": "adamw", "accumulation": 4, "checkpointing": False}
    sweep([graph_files[0], "none.onnx"], out=tmp_path / name, jobs=1, mode="training", software="pytorch 2.4", **asked)
    if name.endswith(".csv"):
        with (tmp_path / name).open(newline="", encoding="utf-8") as stream:
            rows: Rows = list(csv.DictReader(stream))
        asked = {each: str(value) for each, value in asked.items()}
    else:
        rows = read(tmp_path / name)
    assert [row["status"] for row in rows] == ["ok", "error"]
    for row in rows:
        assert {each: row[each] for each in asked} == asked
        assert row["software"] == "torch 2.4"


def test_a_row_says_how_weights_are_stored_and_how_many_are_not_trained(tmp_path: Path, builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(8, 64)], n, 8))
    dippm.save_graph(graph, tmp_path / "a.json.gz")
    asked: dict[str, Any] = {"mode": "training", "weights": "nf4", "lora": 2, "jobs": 1}
    sweep([tmp_path / "a.json.gz", "none.onnx"], out=tmp_path / "t.parquet", **asked)
    done, refused = read(tmp_path / "t.parquet")
    assert done["weights"] == refused["weights"] == "nf4"
    # Of the one layer that is not the last: 2 x 64 and 64 x 2.
    assert (done["parameters"], done["frozen_parameters"]) == (256, 64 * 64 + 8 * 64)
    (answer,) = dippm.predict_each([load(tmp_path / "a.json.gz", weights="nf4")], mode="training", lora=2)
    assert answer.model.to_dict()["quantised_weights"] == {"uint4": 64 * 64}


def test_what_is_refused_leaves_the_others(graph_files: list[str], tmp_path: Path) -> None:
    """An old software cannot drive an H100, and the largest batch of a large layer does not fit any number."""
    out = tmp_path / "t.parquet"
    sweep(graph_files[:1], out=out, batch=[1, 4], device=["V100", "H100", "A100"], software="torch 1.12+cu113", jobs=1)
    rows = read(out)
    assert [(row["batch"], row["status"]) for row in rows] == [
        (batch, status) for batch in (1, 4) for status in ("ok", "error", "ok")
    ]
    refused = [row for row in rows if row["status"] == "error"]
    assert {row["error_code"] for row in refused} == {"software.impossible"}
    assert {row["device"] for row in refused} == {dippm.find_device("H100").name}
    assert all(row["nodes"] == 1 for row in refused)


def test_a_batch_that_a_model_cannot_have_leaves_the_others(tmp_path: Path, builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(4, 8)], 4, 8)
    fixed = replace(builder.graph(), fixed_batch=4, fixed_batch_reason="The file says so.")
    dippm.save_graph(fixed, tmp_path / "fixed.json.gz")
    sweep(tmp_path / "fixed.json.gz", out=tmp_path / "t.parquet", batch=[1, 4, 9], jobs=1)
    assert [(row["batch"], row["status"], row["error_code"]) for row in read(tmp_path / "t.parquet")] == [
        (1, "error", "graph.fixed_batch"),
        (4, "ok", None),
        (9, "error", "graph.fixed_batch"),
    ]


def test_what_holds_of_a_model_is_said_once(tmp_path: Path, builder: Any) -> None:
    dippm.save_graph(builder.graph(builder.input(builder.N, 3)), tmp_path / "empty.json.gz")
    sweep(tmp_path / "empty.json.gz", out=tmp_path / "t.parquet", batch=range(1, 300), device=["A100", "T4"], jobs=1)
    (row,) = read(tmp_path / "t.parquet")
    assert (row["error_code"], row["batch"], row["device"]) == ("graph.empty", None, None)


def test_rows_travel_without_loss(graph_files: list[str]) -> None:
    settings = make_settings(1, 2)
    task = SweepTask(index=7, model=graph_files[0], batches=(1, 2))
    rows = predict_task(task, settings)
    assert rows.schema == make_schema()
    assert decode_rows(encode_rows(rows)).equals(rows)
    (failed,) = fail_task(task, settings, code="worker.died", error="x" * 5000).to_pylist()
    assert (failed["status"], failed["error_code"], len(failed["error"])) == ("error", "worker.died", 1000)
    assert (failed["model"], failed["precision"], failed["warnings"]) == (graph_files[0], "fp32", [])


def test_what_a_library_raises_is_a_row(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors.pop()

    errors: list[Exception] = [MemoryError(), ZeroDivisionError("by a library")]
    monkeypatch.setattr("dippm.api.sweep_rows.load", fail)
    sweep(graph_files[:2], out=tmp_path / "t.parquet", jobs=1)
    rows = read(tmp_path / "t.parquet")
    assert [row["error_code"] for row in rows] == ["internal", "worker.memory"]
    assert rows[0]["error"] == "ZeroDivisionError: by a library"


def test_a_text_that_is_none_is_told_by_its_code(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half of a surrogate pair, as a graph's warning, in an error and in the name of a file."""
    whole = load(graph_files[0])

    def read_model(model: str, **_: object) -> Graph:
        if model != "fine":
            raise ValueError("bad \ud800 text")
        return replace(whole, warnings=("half \ud800 of a pair, and ü",))

    monkeypatch.setattr("dippm.api.sweep_rows.load", read_model)
    models = ["fine", os.fsdecode(b"bad\xff.onnx")]
    report = sweep(models, out=tmp_path / "t.parquet", batch=[1, 2], jobs=1)
    rows = read(tmp_path / "t.parquet")
    assert [row["status"] for row in rows] == ["ok", "ok", "error"]
    assert all("half \\ud800 of a pair, and ü" in row["warnings"] for row in rows[:2])
    assert (rows[2]["model"], rows[2]["error"]) == ("bad\\udcff.onnx", "ValueError: bad \\ud800 text")
    assert report.failures[0].model == "bad\\udcff.onnx"
    sweep(models, out=tmp_path / "t.csv", jobs=1)
    assert "bad\\udcff.onnx" in (tmp_path / "t.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_file_whose_name_is_no_text_is_swept(graph_files: list[str], tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path / "m") + b"\xff.json.gz")
    Path(name).write_bytes(Path(graph_files[0]).read_bytes())
    report = sweep([name, graph_files[1]], out=tmp_path / "t.parquet", jobs=2)
    assert (report.rows, report.errors) == (2, 0)
    assert read(tmp_path / "t.parquet")[0]["model"].endswith("m\\udcff.json.gz")


def test_a_row_holds_so_much_text_and_no_more(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = ("w" * 5_000_000, *(f"warning {number}" for number in range(100)))
    whole = replace(load(graph_files[0]), warnings=warnings, framework="f" * 5_000_000)
    monkeypatch.setattr("dippm.api.sweep_rows.load", lambda *_, **__: whole)
    task = SweepTask(index=0, model="long" * 400, batches=tuple(range(1, 17)))
    rows = predict_task(task, make_settings())
    assert rows.nbytes < 200_000
    (first, *_) = rows.to_pylist()
    assert (first["status"], len(first["framework"]), first["model"]) == ("ok", 1000, "long" * 400)
    assert len(first["warnings"]) == 21
    assert first["warnings"][0] == "w" * 997 + "..."
    assert first["warnings"][-1].endswith("more are left out.")


@pytest.mark.parametrize(("error", "code"), [(ValueError("no table"), "internal"), (MemoryError(), "worker.memory")])
def test_rows_that_make_no_table_are_a_row(
    graph_files: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    as_table, errors = sweep_rows._as_table, [error]

    def fail_once(rows: Any) -> Any:
        if errors:
            raise errors.pop()
        return as_table(rows)

    monkeypatch.setattr(sweep_rows, "_as_table", fail_once)
    (row,) = predict_task(SweepTask(index=0, model=graph_files[0], batches=(1,)), make_settings()).to_pylist()
    assert (row["status"], row["error_code"], row["model"]) == ("error", code, graph_files[0])
