"""The service's side of one worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from dippm.server.jobs import FRAME_HEAD, LARGEST_BODY, LARGEST_HEAD, Job, Reply
from dippm.server.settings import Settings

__all__ = ["UNPACKED_FACTOR", "WorkerDiedError", "WorkerProcess"]

#: An archive may unpack to this many times the largest upload.
UNPACKED_FACTOR = 4
_START_S = 120.0
# A worker is one process of many: its libraries share no work among threads, see no GPU and ask no network.
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_SECRETS = frozenset({"DIPPM_TOKEN"})


class WorkerDiedError(Exception):
    """A worker ended, or said something that no worker says, before it had answered."""


class WorkerProcess:
    """One worker and the socket to it; the constructor starts it.

    Args:
        settings: Settings of the service.
        folder: Folder of the service; the worker's temporary files are kept in one below it, while it runs.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.content: str | None = None
        self.is_gone = asyncio.Event()
        self._folder = tempfile.mkdtemp(prefix="worker-", dir=folder)
        self._own, other = socket.socketpair()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        unpacked_mb = UNPACKED_FACTOR * settings.max_upload_mb
        arguments = [str(each) for each in (other.fileno(), os.getpid(), settings.memory_mb, unpacked_mb)]
        kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dippm.server.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                env={**kept, **_VARIABLES, "TMPDIR": self._folder},
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def id(self) -> int:
        """Process id."""
        return self._process.pid

    async def connect(self) -> None:
        """Wait until the worker can work.

        Raises:
            WorkerDiedError: It ended, or took too long.
        """
        self._stream = await asyncio.open_connection(sock=self._own)
        try:
            async with asyncio.timeout(_START_S):
                await self._read()
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
            raise WorkerDiedError(self._ending()) from exc
        return await self._read()

    def kill(self) -> None:
        """End the process at once, with all that it started; it may have ended already."""
        if self.is_gone.is_set():
            return
        # Once it is waited for, its id may be another process's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._stream is None:
            self._own.close()
        else:
            self._stream[1].close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.is_gone.set()

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
            raise WorkerDiedError(self._ending()) from exc
        except ValueError as exc:
            raise WorkerDiedError("sent a reply that is none") from exc

    def _ending(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
