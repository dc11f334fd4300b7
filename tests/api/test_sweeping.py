from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api.sweeping import sweep
from dippm.errors import DippmError, MissingExtraError, UsageError

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_a_trained_predictor_answers(
    graph_files: list[str], tmp_path: Path, write_predictor: Callable[..., Path]
) -> None:
    folder = write_predictor()
    sweep(graph_files[:1], out=tmp_path / "t.parquet", batch=[1, 2], predictor=folder, jobs=1)
    rows = read(tmp_path / "t.parquet")
    assert [(row["batch"], row["device"], row["precision"]) for row in rows] == [
        (1, "A100-SXM4-40GB", "amp"),
        (2, "A100-SXM4-40GB", "amp"),
    ]
    with pytest.raises(UsageError) as caught:
        sweep(graph_files[:1], out=tmp_path / "u.parquet", device="T4", predictor=folder, jobs=1)
    assert caught.value.code == "predictor.mismatch"


def test_bad_models_are_rows(graph_files: list[str], tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(b"\x08\x08\x12\x07pytorch:\xff")
    (tmp_path / "cut.json.gz").write_bytes(Path(graph_files[0]).read_bytes()[:-9])
    models = [graph_files[0], str(tmp_path / "none.onnx"), str(tmp_path / "cut.onnx"), str(tmp_path / "cut.json.gz")]
    report = sweep([*models, graph_files[1]], out=tmp_path / "t.parquet", batch=[1, 2], jobs=1)
    rows = read(tmp_path / "t.parquet")
    assert [(row["model"], row["status"]) for row in rows] == [
        (graph_files[0], "ok"),
        (graph_files[0], "ok"),
        *((model, "error") for model in models[1:]),
        (graph_files[1], "ok"),
        (graph_files[1], "ok"),
    ]
    assert rows[2]["error_code"] == "model.missing"
    assert rows[2]["batch"] is None
    assert report.errors == 3
    assert sum(failure.rows for failure in report.failures) == 3
    assert {failure.model for failure in report.failures} <= set(models[1:])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"batch": 0}, "batch.invalid"),
        ({"device": "A1000000"}, "device.unknown"),
        ({"precision": "fp7"}, "precision.unknown"),
        ({"input": "3,-1"}, "input.invalid"),
        ({"framework": "caffe"}, "framework.unknown"),
        ({"software": "tensorflow 2"}, "software.unknown"),
        ({"mig_policy": "bold"}, "placement.policy"),
        ({"jobs": 0}, "jobs.invalid"),
        ({"model_limit_s": 0}, "limit.invalid"),
        ({"models": []}, "sweep.models"),
        ({"models": [3]}, "sweep.models"),
        ({"models": "@none.txt"}, "sweep.list"),
        ({"out": "t.xlsx"}, "sweep.out"),
        ({"out": "none/t.parquet"}, "sweep.out"),
    ],
)
def test_what_is_asked_is_checked_before_anything_is_done(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DippmError) as caught:
        sweep(**{"models": graph_files, "out": "t.parquet", "jobs": 1, **options})
    assert caught.value.code == code
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_extras_are_named_before_anything_is_done(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dippm.api.sweep_rows.find_spec", lambda _name: None)
        with pytest.raises(MissingExtraError) as caught:
            sweep(graph_files, out=tmp_path / "t.parquet", jobs=1)
    assert caught.value.extra == "sweep"
    assert not list(tmp_path.glob("t.parquet*"))


class _StopError(Exception):
    """Raised in the middle of a sweep, as a signal would."""


def _stop_after(models: int) -> Callable[[dippm.api.SweepProgress], None]:
    def stop(progress: dippm.api.SweepProgress) -> None:
        if progress.models >= models:
            raise _StopError

    return stop


@pytest.mark.usefixtures("small_parts")
def test_a_cut_sweep_is_resumed_and_ends_like_an_undisturbed_one(graph_files: list[str], tmp_path: Path) -> None:
    undisturbed, cut = tmp_path / "u.parquet", tmp_path / "c.parquet"
    sweep(graph_files, out=undisturbed, batch=[1, 2], jobs=1)
    with pytest.raises(_StopError):
        sweep(graph_files, out=cut, batch=[1, 2], jobs=1, on_progress=_stop_after(5))
    parts = tmp_path / "c.parquet.parts"
    assert len(list(parts.glob("*.parquet"))) == 2
    (parts / "00000007.parquet.99.tmp").write_bytes(b"half")
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=cut, batch=[1, 2], jobs=1)
    assert caught.value.code == "sweep.unfinished"
    seen: list[dippm.api.SweepProgress] = []
    report = sweep(graph_files, out=cut, batch=[1, 2], jobs=1, resume=True, on_progress=seen.append)
    assert (report.resumed_models, report.rows, len(seen)) == (4, 12, 2)
    assert cut.read_bytes() == undisturbed.read_bytes()
    assert not parts.exists()
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=cut, batch=[1, 2], jobs=1)
    assert caught.value.code == "sweep.exists"


def test_a_finished_sweep_is_told_again(graph_files: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "graphs" / "z.json.gz"
    broken.write_bytes(b"no graph")
    folder, out = tmp_path / "tables", tmp_path / "tables" / "t.parquet"
    folder.mkdir()
    models = [*graph_files, str(broken)]
    first = sweep(models, out=out, batch=[1, 2], jobs=1)
    assert first.errors > 0
    before = out.read_bytes(), out.stat().st_mtime_ns, folder.stat().st_mtime_ns
    again = sweep(models, out=out, batch=[1, 2], jobs=1, resume=True)
    assert again == replace(first, resumed_models=len(models), seconds=again.seconds)
    assert (out.read_bytes(), out.stat().st_mtime_ns, folder.stat().st_mtime_ns) == before


def test_a_table_of_another_sweep_is_none_to_go_on_with(graph_files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"

    def refused(**options: Any) -> str:
        before = out.read_bytes()
        with pytest.raises(UsageError) as caught:
            sweep(options.pop("models", graph_files), out=out, jobs=1, resume=True, **options)
        assert caught.value.code == "sweep.exists"
        assert out.read_bytes() == before
        assert not out.with_name(f"{out.name}.parts").exists()
        return str(caught.value)

    sweep(graph_files, out=out, jobs=1)
    assert "did not make it" in refused(batch=2)
    assert "did not make it" in refused(models=graph_files[1:])
    assert "did not make it" in refused(precision="amp")
    os.utime(graph_files[0], ns=(0, 0))
    assert "as they are now" in refused()
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(out).replace_schema_metadata(), out)
    assert "did not make it" in refused()
    out.write_bytes(b"no table")
    assert "did not make it" in refused()
    out = tmp_path / "t.csv"
    sweep(graph_files, out=out, jobs=1)
    assert "does not say which sweep made it" in refused()


def test_a_finished_table_that_is_damaged_is_an_error(graph_files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    sweep(graph_files, out=out, jobs=1)
    content = out.read_bytes()
    out.write_bytes(content[:4] + b"\xff" * 400 + content[404:])
    with pytest.raises(DippmError) as caught:
        sweep(graph_files, out=out, jobs=1, resume=True)
    assert caught.value.code == "sweep.damaged"


def test_a_single_machine_needs_no_ray(graph_files: list[str], tmp_path: Path) -> None:
    words = ["sweep", graph_files[0], "--out", str(tmp_path / "t.parquet"), "--jobs", "1"]
    code = (
        f"import sys, dippm.cli; assert dippm.cli.main({words!r}) == 0; "
        "sys.exit(any(name.partition('.')[0] == 'ray' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_memory_comes_from_the_system_while_a_sweep_runs(graph_files: list[str], tmp_path: Path) -> None:
    usual, seen = pyarrow.default_memory_pool().backend_name, set[str]()
    sweep(
        graph_files[:2],
        out=tmp_path / "t.parquet",
        jobs=1,
        on_progress=lambda _: seen.add(pyarrow.default_memory_pool().backend_name),
    )
    assert seen == {"system"}
    assert pyarrow.default_memory_pool().backend_name == usual != "system"
