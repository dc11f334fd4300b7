from __future__ import annotations

import asyncio

import pytest

from dippm.server.errors import ServiceError
from dippm.server.jobs import Reply
from dippm.server.result_cache import ResultCache


class Maker:
    """Counts how often it is asked."""

    def __init__(self, *, size: int = 100, is_lasting: bool = True) -> None:
        self.asked = 0
        self.reply = Reply(status=200, body=bytes(size), is_lasting=is_lasting)

    async def __call__(self) -> Reply:
        self.asked += 1
        await asyncio.sleep(0.01)
        return self.reply


def test_the_second_time_an_answer_is_kept() -> None:
    async def run() -> list[str]:
        cache, make = ResultCache(most_bytes=10_000), Maker()
        found = [(await cache.answer("key", make))[1] for _ in range(3)]
        assert make.asked == 1
        return found

    assert asyncio.run(run()) == ["miss", "hit", "hit"]


def test_questions_at_once_are_worked_on_once() -> None:
    async def run() -> list[str]:
        cache, make = ResultCache(most_bytes=0), Maker()
        found = await asyncio.gather(*(cache.answer("key", make) for _ in range(5)))
        assert make.asked == 1
        assert (await cache.answer("key", make))[1] == "miss"
        return [how for _, how in found]

    assert asyncio.run(run()) == ["miss"] + 4 * ["shared"]


def test_the_oldest_answers_make_room() -> None:
    async def run() -> None:
        cache, make = ResultCache(most_bytes=2 * (1000 + 512)), Maker(size=1000)
        for key in ("a", "b", "a", "c"):
            await cache.answer(key, make)
        assert cache.size_bytes == 2 * (1000 + 512)
        assert [(await cache.answer(key, make))[1] for key in ("a", "c", "b")] == ["hit", "hit", "miss"]

    asyncio.run(run())


def test_what_does_not_last_or_fit_is_not_kept() -> None:
    async def run() -> None:
        cache = ResultCache(most_bytes=1000)
        for make in (Maker(is_lasting=False), Maker(size=1000)):
            await cache.answer("key", make)
            await cache.answer("key", make)
            assert make.asked == 2
        assert cache.size_bytes == 0

    asyncio.run(run())


def test_a_client_that_leaves_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        cache, make = ResultCache(most_bytes=1000), Maker()
        first = asyncio.create_task(cache.answer("key", make))
        await asyncio.sleep(0)
        second = asyncio.create_task(cache.answer("key", make))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[0] is make.reply
        assert make.asked == 1

    asyncio.run(run())


def test_an_error_reaches_all_and_is_not_kept() -> None:
    asked = 0

    async def fail() -> Reply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        raise ServiceError("m", code="service.timeout", status=504)

    async def run() -> None:
        cache = ResultCache(most_bytes=1000)
        found = await asyncio.gather(*(cache.answer("key", fail) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, ServiceError) for each in found)
        with pytest.raises(ServiceError):
            await cache.answer("key", fail)

    asyncio.run(run())
    assert asked == 2
