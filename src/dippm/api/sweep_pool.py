"""Processes that work through a sweep's tasks; one that dies or hangs costs its task a row, and is replaced."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dippm.api.sweep_rows import SweepTask, decode_rows, encode_rows, fail_task
from dippm.api.sweep_settings import SweepSettings
from dippm.api.sweep_worker import LEAVING, READY
from dippm.errors import DippmError
from dippm.processes.guarded_process import GuardedProcess, ProcessLimits, end_guarded, kill_guarded, start_guarded
from dippm.processes.machine_share import usable_memory_mb

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SweepPool"]

_START_S = 120.0
_ENDING_S = 1.0
_MOST_FAILED_STARTS = 3
_MOST_LOSSES = 2
# One that is worked on and one that waits for it, so that no worker waits for this process.
_TASKS_PER_WORKER = 2
_LEAST_MEMORY_MB = 2048
_LARGEST_FILE_MB = 4096
# A worker is one process of many: its libraries share no work among threads, see no GPU and ask no network.
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

_Answer = tuple[int, bytes]


class SweepPool:
    """Workers, each a process of its own, started when the first task comes.

    Args:
        settings: What each model is asked.
        jobs: Number of workers, at least 1.
        limit_s: Time for one task, s.
        share: How many such pools divide the memory that this process may fill.
    """

    def __init__(self, settings: SweepSettings, *, jobs: int, limit_s: float, share: int = 1) -> None:
        self._settings = settings
        self._jobs = jobs
        self._limit_s = limit_s
        self._memory_mb = max(usable_memory_mb() // (jobs * share), _LEAST_MEMORY_MB)
        self._workers: list[_Worker] = []
        self._losses: dict[int, int] = {}
        self._failed_starts = 0

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(self, tasks: Iterable[SweepTask]) -> Iterator[tuple[int, pyarrow.Table]]:
        """Work through tasks; each one's index and rows, as they come. Raises as :meth:`run_encoded`."""
        return ((index, decode_rows(rows)) for index, rows in self.run_encoded(tasks))

    def run_encoded(self, tasks: Iterable[SweepTask]) -> Iterator[_Answer]:
        """Work through tasks.

        Yields:
            Each task's index and rows, as they come, the rows as :func:`encode_rows` makes them.

        Raises:
            DippmError: ``worker.not_started``.
        """
        waiting, again = iter(tasks), deque[SweepTask]()
        while True:
            self._hand_out(waiting, again)
            working = [worker for worker in self._workers if worker.tasks]
            if not working:
                return
            patience_s = max(0.0, min(worker.deadline_s for worker in working) - time.monotonic())
            ready = wait([worker.connection for worker in self._workers], patience_s)
            for worker in list(self._workers):
                if worker.connection in ready:
                    yield from self._receive(worker, again)
                elif worker.tasks and time.monotonic() >= worker.deadline_s:
                    yield from self._give_up(worker, again)

    def _hand_out(self, waiting: Iterator[SweepTask], again: deque[SweepTask]) -> None:
        while True:
            idlest = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
            has_place = len(self._workers) < self._jobs and (idlest is None or bool(idlest.tasks))
            if not has_place and idlest is not None and len(idlest.tasks) >= _TASKS_PER_WORKER:
                return
            task = again.popleft() if again else next(waiting, None)
            if task is None:
                return
            if has_place or idlest is None:
                idlest = _Worker(self._settings, memory_mb=self._memory_mb, limit_s=self._limit_s)
                self._workers.append(idlest)
            idlest.give(task)

    def _receive(self, worker: _Worker, again: deque[SweepTask]) -> Iterator[_Answer]:
        try:
            answer = worker.connection.recv_bytes()
        except (EOFError, OSError):
            yield from self._bury(worker, again)
            return
        if answer == READY:
            worker.become_ready()
            self._failed_starts = 0
        elif answer == LEAVING:
            self._remove(worker)
            again.extend(worker.tasks)
        else:
            yield worker.take(), answer

    def _bury(self, worker: _Worker, again: deque[SweepTask]) -> Iterator[_Answer]:
        """A worker has ended: the task that it worked on is tried once more, then given up."""
        ending = worker.ending()
        self._remove(worker)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise DippmError(
                    f"The processes that read models do not start: {ending}.",
                    code="worker.not_started",
                    cure="Use one job (jobs=1), which works in this process, to see why.",
                )
        elif worker.tasks:
            task = worker.tasks.popleft()
            self._losses[task.index] = self._losses.get(task.index, 0) + 1
            if self._losses[task.index] < _MOST_LOSSES:
                again.append(task)
            else:
                error = f"It ended the process that reads models, twice; the second time by {ending}."
                yield task.index, self._fail(task, code="worker.died", error=error)
        again.extend(worker.tasks)

    def _give_up(self, worker: _Worker, again: deque[SweepTask]) -> Iterator[_Answer]:
        if not worker.is_ready:
            yield from self._bury(worker, again)
            return
        self._remove(worker)
        task = worker.tasks.popleft()
        again.extend(worker.tasks)
        error = f"It took longer than {self._limit_s:g} s."
        yield task.index, self._fail(task, code="worker.timeout", error=error)

    def _fail(self, task: SweepTask, *, code: str, error: str) -> bytes:
        return encode_rows(fail_task(task, self._settings, code=code, error=error))

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.kill()
        worker.end()


class _Worker:
    """One process and what it was given to do."""

    def __init__(self, settings: SweepSettings, *, memory_mb: int, limit_s: float) -> None:
        self.tasks: deque[SweepTask] = deque()
        self.is_ready = False
        self.deadline_s = time.monotonic() + _START_S
        self._limit_s = limit_s
        own, other = socket.socketpair()
        self.connection = Connection(own.detach())
        with other:
            self._process: GuardedProcess = start_guarded(
                [sys.executable, "-P", "-m", "dippm.api.sweep_worker", str(other.fileno()), str(memory_mb)],
                limits=ProcessLimits(memory_mb=memory_mb, file_mb=_LARGEST_FILE_MB),
                environment={**os.environ, **_VARIABLES},
                descriptors=[other.fileno()],
            )
        self._send(settings)

    def give(self, task: SweepTask) -> None:
        """Give it a task more."""
        if self.is_ready and not self.tasks:
            self.deadline_s = time.monotonic() + self._limit_s
        self.tasks.append(task)
        self._send(task)

    def become_ready(self) -> None:
        """It has begun with its first task."""
        self.is_ready = True
        self.deadline_s = time.monotonic() + self._limit_s

    def take(self) -> int:
        """The index of the task that it has done; it has begun with the next."""
        self.deadline_s = time.monotonic() + self._limit_s
        return self.tasks.popleft().index

    def kill(self) -> None:
        """Tell it to end at once."""
        kill_guarded(self._process)

    def end(self) -> None:
        """Wait until it has ended."""
        end_guarded(self._process)
        self.connection.close()

    def ending(self) -> str:
        """How it ended, which it may be about to."""
        try:
            status = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return "closing its socket"
        return f"signal {-status}" if status < 0 else f"status {status}"

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # its end is told when an answer is awaited
            self.connection.send(message)
