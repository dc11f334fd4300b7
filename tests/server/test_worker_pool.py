"""The pool with real workers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.server.errors import ServiceError
from dippm.server.jobs import Job, Reply, Verb
from dippm.server.settings import Settings
from dippm.server.uploads import UploadStore
from dippm.server.worker_process import WorkerDiedError

Made = Callable[..., bytes]


def job(path: Path, *, content: str = "hash") -> Job:
    return Job(
        verb=Verb.PREDICT, name="named.onnx", path=str(path), content=content, options={"device": "A100", "batch": 1}
    )


def run_pool(folder: Path, use: Callable[[Any], Awaitable[None]], **changes: int) -> None:
    from dippm.server.metrics import Metrics
    from dippm.server.worker_pool import WorkerPool

    async def run() -> None:
        pool = WorkerPool(Settings(workers=1, **changes), Metrics(), folder)  # type: ignore[arg-type]
        pool.open()
        try:
            await use(pool)
        finally:
            await pool.close()

    asyncio.run(run())
    assert list(folder.glob("worker-*")) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "service"
    made.mkdir()
    return made


@pytest.fixture
def slow_file(tmp_path: Path, onnx_bytes: Made) -> Path:
    """A model that takes a second or so to read."""
    path = tmp_path / "slow.onnx"
    path.write_bytes(onnx_bytes(nodes=8_000))
    return path


async def wait_for_worker(pool: Any, *, other_than: int | None = None) -> int:
    """Process id of the one worker, once there is one."""
    while True:
        for worker in pool._alive:
            if worker.id != other_than and worker.is_running:
                return int(worker.id)
        await asyncio.sleep(0.02)


async def failure(asked: Awaitable[Reply]) -> str:
    with pytest.raises(ServiceError) as caught:
        await asked
    return f"{caught.value.code} {caught.value.status}"


def test_a_worker_answers_again_and_again(onnx_file: Path, folder: Path) -> None:
    async def use(pool: Any) -> None:
        first = await pool.ask(job(onnx_file))
        assert json.loads(first.body)["model"]["source"] == "named.onnx"
        replies = await asyncio.gather(*(pool.ask(job(onnx_file)) for _ in range(5)))
        assert all(reply == first for reply in replies)
        limits = Path(f"/proc/{await wait_for_worker(pool)}/limits")
        if limits.exists():
            (line,) = (each for each in limits.read_text().splitlines() if each.startswith("Max data size"))
            assert line.split()[3] == str(1024 * 2**20)

    run_pool(folder, use, memory_mb=1024)


def test_a_worker_that_takes_too_long_or_dies_is_replaced(onnx_file: Path, slow_file: Path, folder: Path) -> None:
    async def use(pool: Any) -> None:
        first, settings = await wait_for_worker(pool), pool._settings
        pool._settings = replace(settings, timeout_s=0.1)
        assert await failure(pool.ask(job(slow_file))) == "service.timeout 504"
        pool._settings = settings
        second = await wait_for_worker(pool, other_than=first)
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        asked = asyncio.create_task(pool.ask(job(slow_file)))
        await asyncio.sleep(0.05)
        os.kill(second, signal.SIGKILL)
        assert await failure(asked) == "service.worker_died 422"
        # One that dies while nobody asks it is replaced as well.
        third = await wait_for_worker(pool, other_than=second)
        os.kill(third, signal.SIGKILL)
        await wait_for_worker(pool, other_than=third)
        assert (await pool.ask(job(onnx_file))).status == 200

    run_pool(folder, use)


def test_who_waits_too_long_is_told_to_come_back(onnx_file: Path, slow_file: Path, folder: Path) -> None:
    async def use(pool: Any) -> None:
        await wait_for_worker(pool)
        slow = asyncio.create_task(pool.ask(job(slow_file)))
        await asyncio.sleep(0.05)
        pool._settings = replace(pool._settings, timeout_s=0.1)
        assert await failure(pool.ask(job(onnx_file))) == "service.busy 503"
        assert len(pool._idle) == 0
        assert (await slow).status == 200
        assert len(pool._idle) == 1

    run_pool(folder, use)


class FakeWorker:
    """A worker that is no process."""

    def __init__(self, *, is_running: bool = True, content: str | None = None) -> None:
        self.is_running, self.content, self.id = is_running, content, 1
        self.is_gone, self.is_cleared = asyncio.Event(), False

    async def connect(self) -> None:
        pass

    async def ask(self, job: Job) -> Reply:
        raise WorkerDiedError(f"ended on {job.name}")

    def kill(self) -> None:
        self.is_running = False

    def clear_up(self) -> None:
        time.sleep(0.3)
        self.is_cleared = True


def make_pool(folder: Path) -> Any:
    from dippm.server.metrics import Metrics
    from dippm.server.worker_pool import WorkerPool

    return WorkerPool(Settings(workers=1, timeout_s=20), Metrics(), folder)


def test_a_dead_worker_is_handed_to_nobody(folder: Path) -> None:
    async def run() -> None:
        pool, dead, dying, well = make_pool(folder), FakeWorker(is_running=False), FakeWorker(), FakeWorker()
        waiter = asyncio.create_task(pool._acquire("content"))
        await asyncio.sleep(0)
        pool._release(dead)
        await asyncio.sleep(0)
        assert not waiter.done()
        # This one dies between its last answer and the turn of who waits.
        pool._release(dying)
        dying.kill()
        await asyncio.sleep(0)
        assert not waiter.done()
        pool._release(well)
        assert await waiter is well
        pool._release(well)
        well.kill()
        waiter = asyncio.create_task(pool._acquire("content"))
        await asyncio.sleep(0)
        assert not waiter.done()
        waiter.cancel()

    asyncio.run(run())


def test_who_gives_up_just_when_a_worker_is_free_leaves_it_to_the_next(folder: Path) -> None:
    async def run() -> None:
        pool, well = make_pool(folder), FakeWorker()
        first, second = (asyncio.create_task(pool._acquire("content")) for _ in range(2))
        await asyncio.sleep(0)
        pool._release(well)
        first.cancel()
        assert await second is well

    asyncio.run(run())


def test_others_are_served_while_a_worker_is_cleared_away(folder: Path, count_turns: Callable[[], Any]) -> None:
    async def run() -> None:
        async with count_turns() as turns:
            async with make_pool(folder)._owned(FakeWorker()):
                before = len(turns)
            assert len(turns) - before >= 5

    asyncio.run(run())


def test_who_gives_up_leaves_nothing(folder: Path) -> None:
    async def run() -> None:
        pool = make_pool(folder)
        waiting = [asyncio.create_task(pool._acquire("content")) for _ in range(5)]
        await asyncio.sleep(0)
        for each in waiting[:4]:
            each.cancel()
        await asyncio.gather(*waiting[:4], return_exceptions=True)
        assert len(pool._waiting) == 1
        well = FakeWorker()
        pool._release(well)
        assert await waiting[4] is well

    asyncio.run(run())


def test_a_file_is_left_alone_before_its_owner_is_told(folder: Path, onnx_file: Path) -> None:
    async def run() -> None:
        pool, dying = make_pool(folder), FakeWorker()
        pool._release(dying)
        assert await failure(pool.ask(job(onnx_file))) == "service.worker_died 422"
        assert dying.is_cleared

    asyncio.run(run())


def test_workers_that_cannot_be_started_are_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dippm.server import worker_pool

    failures = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EMFILE, "Too many open files")]
    tries = 0

    def start(*_: object) -> FakeWorker:
        nonlocal tries
        tries += 1
        if failures:
            raise failures.pop(0)
        return FakeWorker()

    monkeypatch.setattr(worker_pool, "WorkerProcess", start)
    monkeypatch.setattr(worker_pool, "_FIRST_PAUSE_S", 0.01)

    async def run() -> None:
        pool = make_pool(folder)
        pool._settings = replace(pool._settings, workers=2)
        pool.open()
        async with asyncio.timeout(20):
            while pool.ready < 2:
                await asyncio.sleep(0.01)
        await pool.close()

    with caplog.at_level("ERROR"):
        asyncio.run(run())
    assert tries == 4
    assert [record.getMessage() for record in caplog.records] == ["worker.failed"] * 2


def test_archives_take_room_to_unpack_only_once_a_worker_reads_them(folder: Path) -> None:
    class Hanging(FakeWorker):
        async def ask(self, job: Job) -> Reply:
            await asyncio.sleep(600)
            raise WorkerDiedError(job.name)

    async def run() -> None:
        pool, store = make_pool(folder), UploadStore(folder, max_upload_mb=1, workers=1)
        pool._release(Hanging())
        left = store._left
        async with AsyncExitStack() as stack:
            tasks = []
            # Each unpacks to as much as it may; together to far more than there is.
            for _ in range(10):
                incoming = await stack.enter_async_context(store.receive())
                incoming.open("a.zip")
                await incoming.write(bytes(2**13))
                asked = pool.ask(job(folder / "a.zip"), prepare=incoming.claim_unpacked)
                tasks.append(asyncio.create_task(asked))
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
            assert left - store._left == 10 * 2**13 + 4 * 2**20
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert store._left == left

    asyncio.run(run())


def test_a_worker_whose_job_is_refused_at_once_is_for_the_next(folder: Path, onnx_file: Path) -> None:
    def refuse() -> None:
        raise ServiceError("No.", code="upload.no_space", status=503)

    async def run() -> None:
        pool, well = make_pool(folder), FakeWorker()
        pool._release(well)
        assert await failure(pool.ask(job(onnx_file), prepare=refuse)) == "upload.no_space 503"
        assert pool._idle == [well]

    asyncio.run(run())
