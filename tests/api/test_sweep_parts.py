from __future__ import annotations

import os
import signal
import subprocess
import sys
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
def test_parts_without_a_plan_are_nobodys(graph_files: list[str], tmp_path: Path) -> None:
    """As a kill leaves them while they are removed."""
    out, parts = tmp_path / "t.parquet", tmp_path / "t.parquet.parts"
    with pytest.raises(_StopError):
        sweep(graph_files, out=out, jobs=1, on_progress=_stop_after(5))
    (parts / "plan.json").unlink()
    report = sweep(graph_files, out=out, batch=3, jobs=1)
    assert report.resumed_models == 0
    assert [row["batch"] for row in read(out)] == [3] * 6
    # The same beside a table that is there: they go, and the table stays.
    parts.mkdir()
    (parts / "00000000.parquet").write_bytes(b"PAR1")
    (parts / "t.parquet.99.tmp").write_bytes(b"PAR1")
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=out, jobs=1)
    assert caught.value.code == "sweep.exists"
    assert not parts.exists()


@pytest.mark.usefixtures("small_parts")
def test_a_part_of_another_sweep_is_made_again(graph_files: list[str], tmp_path: Path) -> None:
    out, other, undisturbed = (tmp_path / f"{name}.parquet" for name in ("t", "o", "u"))
    sweep(graph_files, out=undisturbed, jobs=1)
    for path, batch in ((out, 1), (other, 3)):
        with pytest.raises(_StopError):
            sweep(graph_files, out=path, batch=batch, jobs=1, on_progress=_stop_after(5))
    foreign = (tmp_path / "o.parquet.parts" / "00000001.parquet").read_bytes()
    (tmp_path / "t.parquet.parts" / "00000001.parquet").write_bytes(foreign)
    (tmp_path / "t.parquet.parts" / "00000000.parquet").write_bytes(b"PAR1 cut")
    report = sweep(graph_files, out=out, jobs=1, resume=True)
    assert report.resumed_models == 0
    assert out.read_bytes() == undisturbed.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_what_is_there_is_looked_at_when_no_other_run_is_at_work(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run begins, and is cut, just before this one gets the lock; or it ends, and removes the lock."""
    import fcntl

    out, flock = tmp_path / "t.parquet", fcntl.flock
    stops: list[int | None] = [5]

    def lock_late(stream: Any, operation: int) -> None:
        if stops:
            stop = stops.pop()
            if stop is None:
                sweep(graph_files, out=out, batch=3, jobs=1, resume=True)
            else:
                with pytest.raises(_StopError):
                    sweep(graph_files, out=out, batch=3, jobs=1, on_progress=_stop_after(stop))
        flock(stream, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=out, jobs=1)
    assert caught.value.code == "sweep.unfinished"
    stops.append(None)
    with pytest.raises(UsageError) as caught:
        sweep(graph_files, out=out, jobs=1)
    assert caught.value.code == "sweep.exists"
    assert [row["batch"] for row in read(out)] == [3] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graphs", "t.parquet"]


KILLED_AT_THE_END = """
import os, signal, sys
from pathlib import Path
import dippm.api.sweep_parts
from dippm.api.sweeping import sweep
step, out, *models = sys.argv[1:]
unlink, replace = Path.unlink, Path.replace

def unlink_and_die(path, **options):
    unlink(path, **options)
    if path.name == "plan.json":
        os.kill(os.getpid(), signal.SIGKILL)

def die_instead(path, target):
    if Path(target).name == Path(out).name:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(path, target)

if step == "removing":
    Path.unlink = unlink_and_die
else:
    Path.replace = die_instead
sweep(models, out=out, jobs=1)
"""


@pytest.mark.parametrize(("step", "resume"), [("removing", False), ("removing", True), ("merging", True)])
def test_a_kill_at_the_end_leaves_nothing_for_ever(
    graph_files: list[str], tmp_path: Path, step: str, resume: bool
) -> None:
    out, models = tmp_path / "t.parquet", graph_files[:2]
    words = [sys.executable, "-c", KILLED_AT_THE_END, step, str(out), *models]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    # What is half lies in the folder alone.
    assert {path.name for path in tmp_path.iterdir()} <= {"graphs", "t.parquet", "t.parquet.parts"}
    if resume:
        assert sweep(models, out=out, jobs=1, resume=True).resumed_models == 2
    else:
        with pytest.raises(UsageError) as caught:
            sweep(models, out=out, jobs=1)
        assert caught.value.code == "sweep.exists"
    assert len(read(out)) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"graphs", "t.parquet"}


def test_what_others_keep_in_the_folder_stays(graph_files: list[str], tmp_path: Path) -> None:
    parts = tmp_path / "t.parquet.parts"
    parts.mkdir()
    (parts / "notes.txt").write_text("mine")
    sweep(graph_files[:1], out=tmp_path / "t.parquet", jobs=1)
    assert (parts / "notes.txt").read_text() == "mine"


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
