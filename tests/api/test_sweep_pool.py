from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api import sweep_pool
from dippm.api.sweeping import sweep
from dippm.errors import DippmError

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


SCRIPT = """
import sys
from dippm.api import sweep_plan
from dippm.api.sweeping import sweep
sweep_plan._TASKS_PER_PART = 2
out, jobs, *models = sys.argv[1:]
sweep(models, out=out, batch=list(range(1, 60)), device=["A100", "T4"], jobs=int(jobs),
      on_progress=lambda progress: print(progress.models, flush=True))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_killed_run_is_resumed(graph_files: list[str], tmp_path: Path) -> None:
    """SIGKILL to the whole run: nothing is cleared up, and its workers end."""
    cut, undisturbed, models = tmp_path / "c.parquet", tmp_path / "u.parquet", graph_files * 4
    asked: dict[str, Any] = {"batch": range(1, 60), "device": ["A100", "T4"]}
    sweep(models, out=undisturbed, jobs=1, **asked)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(cut), "2", *models], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        while int(process.stdout.readline()) < 8:
            pass
        workers = _descendants(process.pid)
        process.kill()
        process.wait()
    assert workers
    _wait_until_gone(workers)
    assert not cut.exists()
    report = sweep(models, out=cut, jobs=2, resume=True, **asked)
    assert 0 < report.resumed_models < len(models)
    assert cut.read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_killed_worker_costs_nothing(
    graph_files: list[str], tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    """SIGKILL to a worker: its task is done again."""
    out, undisturbed, models = tmp_path / "t.parquet", tmp_path / "u.parquet", graph_files * 4
    asked: dict[str, Any] = {"batch": range(1, 60), "device": ["A100", "T4"]}
    sweep(models, out=undisturbed, jobs=1, **asked)
    killed: list[int] = []

    def kill(progress: dippm.api.SweepProgress) -> None:
        left = [pid for pid in _workers(os.getpid()) if pid not in killed and is_running(pid)]
        if left and len(killed) < min(progress.models // 6, 2):
            killed.append(left[0])
            os.kill(killed[-1], signal.SIGKILL)

    report = sweep(models, out=out, jobs=2, on_progress=kill, **asked)
    assert len(killed) == 2
    assert (report.errors, report.workers) == (0, 2)
    assert out.read_bytes() == undisturbed.read_bytes()


# What a Python process does at its start where this lies on its path.
AT_START = """
import os, signal, sys, time

def on_event(event, arguments):
    if event == "open" and str(arguments[0]).endswith("killer.json.gz"):
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "open" and str(arguments[0]).endswith("sleeper.json.gz"):
        time.sleep(60)

sys.addaudithook(on_event)
"""


@pytest.mark.slow
def test_what_a_model_does_to_its_worker_is_a_row(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models, the first of which kills the worker that opens it and the other stands still, between others."""
    monkeypatch.setattr(sweep_pool, "_ENDING_S", 5.0)
    (tmp_path / "sitecustomize.py").write_text(AT_START)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([path] if path else [])]))
    killer, sleeper = tmp_path / "killer.json.gz", tmp_path / "sleeper.json.gz"
    for model in (killer, sleeper):
        model.write_bytes(Path(graph_files[0]).read_bytes())
    models = [graph_files[0], str(killer), graph_files[1], str(sleeper), graph_files[2]]
    report = sweep(models, out=tmp_path / "t.parquet", jobs=2, model_limit_s=4.0)
    rows = read(tmp_path / "t.parquet")
    assert [row["error_code"] for row in rows] == [None, "worker.died", None, "worker.timeout", None]
    assert "signal 9" in rows[1]["error"]
    assert "4 s" in rows[3]["error"]
    assert report.errors == 2


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:
            continue
    return found


def _descendants(pid: int) -> list[int]:
    return [each for child in _children(pid) for each in (child, *_descendants(child))]


def _workers(pid: int) -> list[int]:
    """The processes below the guardians, which are in sessions of their own."""
    guardians = [child for child in _children(pid) if _session(child) not in (None, os.getsid(0))]
    return [worker for guardian in guardians for worker in _children(guardian)]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _wait_until_gone(processes: Sequence[int]) -> None:
    end_s = time.monotonic() + 20.0
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_workers_that_do_not_start_are_said(
    graph_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DippmError) as caught:
        sweep(graph_files, out=tmp_path / "t.parquet", jobs=2)
    assert caught.value.code == "worker.not_started"
    assert not list(tmp_path.glob("t.parquet*"))
