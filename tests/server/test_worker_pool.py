"""The pool with real workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.server.errors import ServiceError
from dippm.server.jobs import Job, Reply, Verb
from dippm.server.settings import Settings

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
        self.is_running, self.content = is_running, content

    def kill(self) -> None:
        self.is_running = False

    def clear_up(self) -> None:
        time.sleep(0.3)


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


def test_others_are_served_while_a_worker_is_cleared_away(folder: Path) -> None:
    async def run() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counter = asyncio.create_task(count())
        async with make_pool(folder)._owned(FakeWorker()):
            pass
        counter.cancel()
        assert turns >= 5

    asyncio.run(run())
