from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api.sweeping import sweep
from dippm.errors import DippmError, UsageError

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


class _StopError(Exception):
    """Raised in the middle of a sweep, as a signal would."""


def _stop_after(models: int) -> Callable[[dippm.api.SweepProgress], None]:
    def stop(progress: dippm.api.SweepProgress) -> None:
        if progress.models >= models:
            raise _StopError

    return stop


def test_a_table_may_be_csv(graph_files: list[str], tmp_path: Path) -> None:
    import csv

    for name in ("t.csv", "t.parquet"):
        sweep([*graph_files[:2], "none.onnx"], out=tmp_path / name, batch=[1, 2], jobs=1)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 5
    for row, expected in zip(rows, read(tmp_path / "t.parquet"), strict=True):
        assert row["warnings"] == "; ".join(expected.pop("warnings"))
        assert {name: row[name] for name in expected} == {
            name: "" if value is None else str(value) for name, value in expected.items()
        }


def test_a_sweep_that_wrote_nothing_leaves_nothing(graph_files: list[str], tmp_path: Path) -> None:
    with pytest.raises(_StopError):
        sweep(graph_files, out=tmp_path / "t.parquet", jobs=1, on_progress=_stop_after(1))
    assert not list(tmp_path.glob("t.parquet*"))


@pytest.mark.usefixtures("small_parts")
def test_a_full_disk_is_said_and_the_parts_stay(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, written = tmp_path / "t.parquet", 0
    fsync = os.fsync

    def fill(descriptor: int) -> None:
        nonlocal written
        written += 1
        if written > 4:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill)
        with pytest.raises(DippmError, match="No space left") as caught:
            sweep(graph_files, out=out, jobs=1)
    assert caught.value.code == "sweep.unwritable"
    assert not list((tmp_path / "t.parquet.parts").glob("*.tmp"))
    assert sweep(graph_files, out=out, jobs=1, resume=True).resumed_models > 0


@pytest.mark.usefixtures("small_parts")
def test_one_run_at_a_time_and_no_damaged_part(graph_files: list[str], tmp_path: Path) -> None:
    out, codes = tmp_path / "t.parquet", []

    def ask_again(progress: dippm.api.SweepProgress) -> None:
        with pytest.raises(UsageError) as caught:
            sweep(graph_files, out=out, jobs=1, resume=True)
        codes.append(caught.value.code)
        if progress.models == 5:
            (tmp_path / "t.parquet.parts" / "00000000.parquet").write_bytes(b"PAR1 damaged PAR1")

    with pytest.raises(DippmError) as caught:
        sweep(graph_files, out=out, jobs=1, on_progress=ask_again)
    assert caught.value.code == "sweep.damaged"
    assert set(codes) == {"sweep.running"}
    (tmp_path / "t.parquet.parts" / "00000000.parquet").unlink()
    assert sweep(graph_files, out=out, jobs=1, resume=True).rows == 6


@pytest.mark.usefixtures("small_parts")
def test_row_groups_do_not_hang_on_the_parts(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dippm.api.sweep_parts._ROWS_PER_GROUP", 3)
    sweep(graph_files, out=tmp_path / "t.parquet", jobs=1)
    with pyarrow.parquet.ParquetFile(tmp_path / "t.parquet") as file:
        sizes = [file.metadata.row_group(place).num_rows for place in range(file.num_row_groups)]
        assert sizes == [4, 2]
        assert b'"precision": "fp32"' in file.schema_arrow.metadata[b"dippm.sweep"]
    assert [row["model"] for row in read(tmp_path / "t.parquet")] == graph_files
