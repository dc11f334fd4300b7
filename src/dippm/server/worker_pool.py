"""Workers that are started before they are needed, and replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from dippm.server.errors import ServiceError
from dippm.server.jobs import Job, Reply
from dippm.server.logs import log_event
from dippm.server.metrics import Metrics
from dippm.server.settings import Settings
from dippm.server.worker_process import WorkerDiedError, WorkerProcess

__all__ = ["WorkerPool"]

_CHECK_S = 1.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_RETRY_AFTER = {"Retry-After": "2"}


class WorkerPool:
    """Answers jobs, each on a worker of its own, at most ``settings.workers`` at once.

    Args:
        settings: Settings of the service.
        metrics: Where to count.
        folder: Folder of the service.
        first: A worker that was started already, to get ready while the service itself was still being imported.
    """

    def __init__(
        self, settings: Settings, metrics: Metrics, folder: Path, *, first: WorkerProcess | None = None
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._folder = folder
        self._first = first
        self._alive: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._waiting: deque[asyncio.Future[WorkerProcess]] = deque()
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> int:
        """Workers that can work."""
        return len(self._alive)

    def open(self) -> None:
        """Keep the workers going; to be called in the event loop."""
        first_is_ready = asyncio.Event()
        self._keepers = [
            asyncio.create_task(self._keep(number, first_is_ready)) for number in range(self._settings.workers)
        ]

    async def close(self) -> None:
        """End all workers, whatever they are doing."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def ask(self, job: Job, *, prepare: Callable[[], None] | None = None) -> Reply:
        """Answer a job. When this ends, no worker has anything to do with the job's file any more.

        Args:
            job: The job.
            prepare: Called once a worker is free for it; what it raises is raised here.

        Raises:
            ServiceError: ``service.busy``, ``service.timeout``, ``service.worker_died``.
        """
        with self._metrics.waiting.track_inprogress():
            worker = await self._acquire(job.content)
        is_well = True
        try:
            if prepare is not None:
                prepare()
            is_well = False
            with self._metrics.working.track_inprogress():
                async with asyncio.timeout(self._settings.timeout_s):
                    reply = await worker.ask(job)
            is_well = not reply.is_last
        except TimeoutError as exc:
            raise self._lost(
                "timeout", worker, status=504, why=f"took longer than {self._settings.timeout_s:g} s", name=job.name
            ) from exc
        except WorkerDiedError as exc:
            # A file that ends its reader is at fault; a model by name never is.
            raise self._lost(
                "worker_died",
                worker,
                status=500 if job.path is None else 422,
                why=f"ended the process that reads models: it {exc}",
                name=job.name,
            ) from exc
        finally:
            if is_well:
                self._release(worker)
            else:
                worker.kill()
                # Until it has ended it may go on to write beside the file, which its owner is about to remove.
                await asyncio.to_thread(worker.clear_up)
        if reply.is_last:
            self._metrics.lost_workers.labels(reason="full").inc()
            log_event("worker.full", {"worker": worker.id})
        if reply.defect:
            log_event("defect", {"verb": job.verb.value, "where": reply.defect}, level=logging.ERROR)
        return reply

    def _lost(self, code: str, worker: WorkerProcess, *, status: int, why: str, name: str) -> ServiceError:
        self._metrics.lost_workers.labels(reason=code).inc()
        log_event("worker.lost", {"reason": code, "worker": worker.id}, level=logging.WARNING)
        return ServiceError(
            f"'{name}' {why}.", code=f"service.{code}", status=status, cure="Ask dippm on your own machine."
        )

    async def _acquire(self, content: str) -> WorkerProcess:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                while True:
                    worker = self._take_idle(content) or await self._wait_for_turn()
                    if worker.is_running:
                        return worker
                    worker.kill()
        except TimeoutError as exc:
            raise ServiceError(
                f"No worker was free for {self._settings.timeout_s:g} s.",
                code="service.busy",
                status=503,
                headers=_RETRY_AFTER,
                cure="Try again later.",
            ) from exc

    def _take_idle(self, content: str) -> WorkerProcess | None:
        if not self._idle:
            return None
        # The worker that read this model last has its graph at hand.
        worker = next((each for each in self._idle if each.content == content), self._idle[-1])
        self._idle.remove(worker)
        return worker

    async def _wait_for_turn(self) -> WorkerProcess:
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            if turn.done():
                self._release(turn.result())
            else:
                self._waiting.remove(turn)
            raise

    def _release(self, worker: WorkerProcess) -> None:
        if not worker.is_running:
            worker.kill()
            return
        if self._waiting:
            self._waiting.popleft().set_result(worker)
        else:
            self._idle.append(worker)

    async def _keep(self, number: int, first_is_ready: asyncio.Event) -> None:
        """Keep one worker going: start it, wait until it is gone, start the next."""
        pause_s = _FIRST_PAUSE_S
        if number:
            # The first one shall not share the processor while it gets ready.
            await first_is_ready.wait()
        while True:
            if await self._keep_one(first_is_ready):
                pause_s = _FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _keep_one(self, first_is_ready: asyncio.Event) -> bool:
        """Start a worker and wait until it is gone; whether it ever got ready."""
        try:
            started = self._first or WorkerProcess(self._settings, self._folder)
        except OSError as exc:  # a full disk or too many open files: neither need last
            self._tell_failure(0, f"could not be started: {exc}")
            return False
        self._first = None
        async with self._owned(started) as worker:
            try:
                await worker.connect()
            except (WorkerDiedError, OSError) as exc:
                self._tell_failure(worker.id, str(exc))
                return False
            first_is_ready.set()
            self._alive.add(worker)
            log_event("worker.ready", {"worker": worker.id})
            self._release(worker)
            await self._wait_until_gone(worker)
        return True

    def _tell_failure(self, worker: int, reason: str) -> None:
        log_event("worker.failed", {"worker": worker, "reason": reason}, level=logging.ERROR)
        self._metrics.lost_workers.labels(reason="start").inc()

    async def _wait_until_gone(self, worker: WorkerProcess) -> None:
        while worker.is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await worker.is_gone.wait()

    @contextlib.asynccontextmanager
    async def _owned(self, worker: WorkerProcess) -> AsyncIterator[WorkerProcess]:
        """Clear up after a worker, however it ends."""
        try:
            yield worker
        finally:
            self._alive.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            worker.kill()
            await asyncio.to_thread(worker.clear_up)
