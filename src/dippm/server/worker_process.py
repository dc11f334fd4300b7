"""The service's side of one worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from dippm.processes.guarded_process import ProcessLimits, end_guarded, kill_guarded, start_guarded
from dippm.server.jobs import FRAME_HEAD, LARGEST_BODY, LARGEST_HEAD, Job, Reply
from dippm.server.settings import Settings
from dippm.server.uploads import UNPACKED_FACTOR

__all__ = ["WorkerDiedError", "WorkerProcess"]

_START_S = 120.0
_ENDING_S, _ENDING_STEP_S = 1.0, 0.01
# A worker is one process of many: its libraries share no work among threads, see no GPU and ask no network.
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
# Where dippm keeps what takes long to make; set and empty, nowhere.
_KEPT_FOLDER = "DIPPM_CACHE"
_SECRETS = frozenset({"DIPPM_TOKEN"})


class WorkerDiedError(Exception):
    """A worker ended, or said something that no worker says, before it had answered."""


class WorkerProcess:
    """One worker and the socket to it; the constructor starts it.

    ``content`` is what it read last, ``id`` its process id once it is connected; ``is_gone`` is set when it was told to
    end.

    Args:
        settings: Settings of the service.
        folder: Folder of the service. Below it lie the worker's temporary files, while it runs, and what the workers
            make of clients' files and keep for each other, while the service does.

    Raises:
        OSError: The machine has no room for another one: on its disk, or among its processes and open files.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.content: str | None = None
        self.id = 0
        self.is_gone = asyncio.Event()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._clearing = threading.Lock()
        self._is_cleared = False
        unpacked_mb = UNPACKED_FACTOR * settings.max_upload_mb
        with ExitStack() as undo:
            self._folder = tempfile.mkdtemp(prefix="worker-", dir=folder)
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._own, other = socket.socketpair()
            undo.callback(self._own.close)
            arguments = [str(each) for each in (other.fileno(), settings.memory_mb, unpacked_mb)]
            with other:
                self._process = start_guarded(
                    [sys.executable, "-P", "-m", "dippm.server.worker", *arguments],
                    limits=ProcessLimits(memory_mb=settings.memory_mb, file_mb=unpacked_mb),
                    environment=_environment(folder) | {"TMPDIR": self._folder},
                    descriptors=[other.fileno()],
                )
            undo.pop_all()

    @property
    def is_running(self) -> bool:
        """Whether the process is there and was not told to end."""
        return not self.is_gone.is_set() and self._process.poll() is None

    async def connect(self) -> None:
        """Wait until the worker can work.

        Raises:
            WorkerDiedError: It ended, or took too long.
        """
        self._stream = await asyncio.open_connection(sock=self._own)
        try:
            async with asyncio.timeout(_START_S):
                ready = await self._read()
                self.id = int(ready.body)
        except ValueError as exc:
            raise WorkerDiedError("did not say who it is") from exc
        except TimeoutError as exc:
            raise WorkerDiedError(f"did not start within {_START_S:g} s") from exc

    async def ask(self, job: Job) -> Reply:
        """Send a job and wait for the reply.

        Raises:
            WorkerDiedError: The worker ended, or its reply is none.
        """
        if self._stream is None:
            raise WorkerDiedError("was not connected")
        self.content = job.content
        try:
            self._stream[1].write(job.to_frame())
            await self._stream[1].drain()
        except ConnectionError as exc:
            raise WorkerDiedError(await self._ending()) from exc
        return await self._read()

    def kill(self) -> None:
        """Tell the process, and all that it started, to end at once; it may have ended already."""
        if self.is_gone.is_set():
            return
        kill_guarded(self._process)
        if self._stream is None:
            self._own.close()
        else:
            self._stream[1].close()
        self.is_gone.set()

    def clear_up(self) -> None:
        """End the process, wait until it has ended, and remove its files; all of it may be done already."""
        with self._clearing:
            if self._is_cleared:
                return
            self.kill()
            end_guarded(self._process)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._is_cleared = True

    async def _read(self) -> Reply:
        if self._stream is None:
            raise WorkerDiedError("was not connected")
        reader = self._stream[0]
        try:
            head_length, body_length = FRAME_HEAD.unpack(await reader.readexactly(FRAME_HEAD.size))
            if head_length > LARGEST_HEAD or body_length > LARGEST_BODY:
                raise WorkerDiedError("sent a reply that is too large")
            return Reply.from_parts(await reader.readexactly(head_length), await reader.readexactly(body_length))
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise WorkerDiedError(await self._ending()) from exc
        except ValueError as exc:
            raise WorkerDiedError("sent a reply that is none") from exc

    async def _ending(self) -> str:
        """How the process ended, which it may be about to."""
        for _ in range(round(_ENDING_S / _ENDING_STEP_S)):
            status = self._process.poll()
            if status is not None:
                return f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
            await asyncio.sleep(_ENDING_STEP_S)
        return "closed its socket"


def _environment(folder: Path) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    # What is made of a client's file does not outlive the service, least of all among its user's own things.
    keeps = given.get(_KEPT_FOLDER) != ""
    return {**given, **_VARIABLES, _KEPT_FOLDER: str(folder / "kept") if keeps else ""}
