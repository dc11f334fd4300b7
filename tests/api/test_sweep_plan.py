from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api import sweep_plan
from dippm.api.question import Question
from dippm.api.sweep_plan import SweepPlan
from dippm.api.sweep_settings import SweepSettings
from dippm.api.sweeping import sweep
from dippm.errors import UsageError

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def make_settings() -> SweepSettings:
    return SweepSettings.of(Question(), batch=1, device=None)


def test_many_batches_are_cut_and_stay_in_order(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    asked: dict[str, Any] = {"batch": [5, 3, 1, 4, 2, 3], "device": ["T4", "A100"], "jobs": 1}
    sweep(graph_files, out=whole, **asked)
    monkeypatch.setattr(sweep_plan, "_ROWS_PER_TASK", 4)
    monkeypatch.setattr(sweep_plan, "_ROWS_PER_PART", 8)
    seen: list[dippm.api.SweepProgress] = []
    sweep(graph_files, out=cut, on_progress=seen.append, **asked)
    assert [row["batch"] for row in read(whole)][:10] == [5, 5, 3, 3, 1, 1, 4, 4, 2, 2]
    assert read(cut) == read(whole)
    assert [progress.models for progress in seen][-1] == 6
    assert seen[-1].rows == 60


class _StopError(Exception):
    """Raised in the middle of a sweep, as a signal would."""


def _stop_after(models: int) -> Callable[[dippm.api.SweepProgress], None]:
    def stop(progress: dippm.api.SweepProgress) -> None:
        if progress.models >= models:
            raise _StopError

    return stop


@pytest.mark.usefixtures("small_parts")
def test_another_sweep_is_not_gone_on_with(graph_files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    with pytest.raises(_StopError):
        sweep(graph_files, out=out, batch=[1, 2], jobs=1, on_progress=_stop_after(5))
    os.utime(graph_files[3], (1, 1))
    changes: list[tuple[dict[str, Any], str]] = [
        ({}, "'.*3.json.gz' has changed"),
        ({"models": graph_files[1:]}, "there were 6 models and are 5"),
        ({"models": [*graph_files[1:], graph_files[0]]}, "stood"),
        ({"batch": [1, 2, 3]}, r"settings.batches was \[1, 2\] and is \[1, 2, 3\]"),
        ({"precision": "amp"}, 'precision was "fp32" and is "amp"'),
        ({"device": "T4"}, "settings.devices"),
    ]
    for change, words in changes:
        with pytest.raises(UsageError, match=words) as caught:
            sweep(**{"models": graph_files, "out": out, "batch": [1, 2], "jobs": 1, "resume": True, **change})
        assert caught.value.code == "sweep.changed"


@pytest.mark.usefixtures("small_parts")
def test_one_with_other_columns_is_not_gone_on_with(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(sweep_plan, "_FORMAT", 1)
        with pytest.raises(_StopError):
            sweep(graph_files, out=tmp_path / "t.parquet", jobs=1, on_progress=_stop_after(5))
        sweep(graph_files, out=tmp_path / "done.parquet", jobs=1)
    with pytest.raises(UsageError, match="a dippm began it whose tables have other columns") as caught:
        sweep(graph_files, out=tmp_path / "t.parquet", jobs=1, resume=True)
    assert caught.value.code == "sweep.changed"
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=tmp_path / "done.parquet", jobs=1, resume=True)
    assert caught.value.code == "sweep.exists"


def _save_model(folder: Path) -> Path:
    """A folder that looks like a SavedModel with two files."""
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"program")
    (folder / "variables" / "variables.index").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("change", ["size", "time", "another file"])
def test_a_file_of_a_models_folder_counts(graph_files: list[str], tmp_path: Path, change: str) -> None:
    folder, settings = _save_model(tmp_path / "saved"), make_settings()
    before = SweepPlan.of([graph_files[0], str(folder)], settings)
    assert before.differences(SweepPlan.of([graph_files[0], str(folder)], settings).to_text()) == []
    weights = folder / "variables" / "variables.index"
    times = {each: (each.stat().st_mtime_ns,) * 2 for each in (folder, weights.parent)}
    if change == "size":
        state = weights.stat()
        weights.write_bytes(b"other weights")
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "time":
        os.utime(weights, (1, 1))
    else:
        (weights.parent / "more").write_bytes(b"")
    for each, its_times in times.items():  # those of folders tell nothing
        os.utime(each, ns=its_times)
    (difference,) = before.differences(SweepPlan.of([graph_files[0], str(folder)], settings).to_text())
    assert difference == f"'{folder}' has changed"


def test_the_file_of_a_model_in_python_counts(graph_files: list[str], tmp_path: Path) -> None:
    file, settings = tmp_path / "net.py", make_settings()
    models = [graph_files[0], f"{file}:Net"]
    file.write_text("class Net: ...", encoding="utf-8")
    before = SweepPlan.of(models, settings)
    assert before.differences(SweepPlan.of(models, settings).to_text()) == []
    file.write_text("class Net: size = 2", encoding="utf-8")
    assert before.differences(SweepPlan.of(models, settings).to_text()) == [f"'{models[1]}' has changed"]


def test_a_name_that_is_no_text_is_kept_in_a_plan(graph_files: list[str], tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path / "m") + b"\xff.onnx")
    plan = SweepPlan.of([graph_files[0], name], make_settings())
    plan.to_text().encode("utf-8")
    assert plan.differences(plan.to_text()) == []
    assert plan.to_hash() == SweepPlan.of([graph_files[0], name], make_settings()).to_hash()
    assert plan.to_hash() != SweepPlan.of([name, graph_files[0]], make_settings()).to_hash()
