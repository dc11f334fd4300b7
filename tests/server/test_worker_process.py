"""What a worker is given, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dippm.server.settings import Settings
from dippm.server.worker_process import WorkerDiedError, WorkerProcess, _environment


def test_what_is_made_of_clients_files_lies_in_the_services_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path / "the users"))
    monkeypatch.setenv("DIPPM_TOKEN", "hush")
    found = _environment(tmp_path / "service")
    assert Path(found["DIPPM_CACHE"]).parent == tmp_path / "service"
    assert "DIPPM_TOKEN" not in found
    monkeypatch.delenv("DIPPM_CACHE")
    assert Path(_environment(tmp_path)["DIPPM_CACHE"]).parent == tmp_path
    monkeypatch.setenv("DIPPM_CACHE", "")
    assert _environment(tmp_path)["DIPPM_CACHE"] == ""


def test_a_worker_that_ended_says_how_and_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        worker = WorkerProcess(Settings(workers=1), tmp_path)
        await worker.connect()
        assert (worker.is_running, worker.id > 0, worker.id != os.getpid()) == (True, True, True)
        os.kill(worker.id, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=f"ended by signal {int(signal.SIGKILL)}"):
            await worker._read()
        assert not worker.is_running
        worker.kill()
        await asyncio.to_thread(worker.clear_up)

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_was_told_to_end_counts_as_gone_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        worker = WorkerProcess(Settings(workers=1), tmp_path)
        worker.kill()
        assert (worker.is_running, worker.is_gone.is_set()) == (False, True)
        worker.kill()
        worker.clear_up()

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
