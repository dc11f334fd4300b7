"""What a worker is given, and what is left of it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from dippm.server import worker_process
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


def test_what_is_cleared_up_already_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    end = worker_process.end_guarded

    def count(process: Any) -> None:
        ended.append(process)
        end(process)

    monkeypatch.setattr(worker_process, "end_guarded", count)

    async def run() -> None:
        worker = WorkerProcess(Settings(workers=1), tmp_path)
        worker.kill()
        await asyncio.gather(*(asyncio.to_thread(worker.clear_up) for _ in range(3)))
        worker.clear_up()

    asyncio.run(run())
    assert len(ended) == 1


@pytest.mark.parametrize("failing", ["socketpair", "start_guarded"])
def test_one_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    pairs: list[tuple[socket.socket, socket.socket]] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        pairs.append(made())
        return pairs[-1]

    made = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", pair)
    monkeypatch.setattr(socket if failing == "socketpair" else worker_process, failing, fail)
    with pytest.raises(OSError, match="Too many"):
        WorkerProcess(Settings(workers=1), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert all(each.fileno() == -1 for both in pairs for each in both)
