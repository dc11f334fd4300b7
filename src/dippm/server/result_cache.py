"""Answers that are kept, so that the same question is worked on once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from dippm.server.jobs import Reply

__all__ = ["ResultCache"]

# Of one entry beside its body: key, reply and the places in tables.
_ENTRY_BYTES = 512


class ResultCache:
    """Keeps the answers asked for last, within a bound in memory.

    Args:
        most_bytes: Memory for answers; 0 keeps none. Questions that are being worked on are shared either way.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Reply]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory that the kept answers take."""
        return self._bytes

    async def answer(self, key: str, make: Callable[[], Awaitable[Reply]]) -> tuple[Reply, str]:
        """The answer of a question, and how it was come by: ``hit``, ``shared`` with another client, or ``miss``.

        Args:
            key: The same for all questions that have the same answer.
            make: Works the answer out.
        """
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept, "hit"
        running = self._under_way.get(key)
        how = "miss" if running is None else "shared"
        if running is None:
            running = asyncio.ensure_future(self._make(key, make))
            self._under_way[key] = running
        # One client that leaves does not end what others wait for.
        return await asyncio.shield(running), how

    async def _make(self, key: str, make: Callable[[], Awaitable[Reply]]) -> Reply:
        try:
            reply = await make()
        finally:
            del self._under_way[key]
        if reply.is_lasting and len(reply.body) + _ENTRY_BYTES <= self._most_bytes:
            self._kept[key] = reply
            self._bytes += len(reply.body) + _ENTRY_BYTES
            while self._bytes > self._most_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= len(dropped.body) + _ENTRY_BYTES
        return reply
