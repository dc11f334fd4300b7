from __future__ import annotations

import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dippm.api.question import Question
from dippm.api.sweep_rows import SweepTask, decode_rows, predict_task
from dippm.api.sweep_settings import SweepSettings
from dippm.api.sweep_worker import LEAVING, READY


def test_a_worker_answers_and_leaves_when_it_is_full(graph_files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths begin where the settings were made; one MiB of memory is full after the first task."""
    monkeypatch.chdir(Path(graph_files[0]).parent)
    settings = SweepSettings.of(Question(), batch=1, device=None)
    monkeypatch.chdir("/")
    task = SweepTask(index=0, model=Path(graph_files[0]).name, batches=(1,))
    own, other = socket.socketpair()
    words = [sys.executable, "-P", "-m", "dippm.api.sweep_worker", str(other.fileno()), "1"]
    with subprocess.Popen(words, pass_fds=[other.fileno()]) as process, Connection(own.detach()) as connection:
        other.close()
        connection.send(settings)
        assert connection.recv_bytes() == READY
        connection.send(task)
        rows = decode_rows(connection.recv_bytes())
        assert connection.recv_bytes() == LEAVING
        assert process.wait() == 0
    monkeypatch.chdir(settings.folder)
    assert rows.equals(predict_task(task, settings))
    assert rows.to_pylist()[0]["status"] == "ok"
