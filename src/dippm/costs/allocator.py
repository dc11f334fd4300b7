"""PyTorch's CUDA caching allocator, as far as it decides how much device memory a process holds.

Rules and constants: ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDACachingAllocator.cpp``, PyTorch 2.13, default
settings, one stream. A request is rounded up to 512 bytes. Up to 1 MiB it comes from a pool of 2 MiB segments, larger
ones from a pool of 20 MiB segments, and from 10 MiB on from a segment of its own, rounded up to 2 MiB. The smallest
free block that is large enough serves it and is split where enough remains (512 bytes in the small pool, more than
1 MiB in the large one). A freed block joins its free neighbours. Segments are kept until the device has no room for a
new one; then all segments that are wholly free go back to the device at once.

``_replay.c`` does what :func:`peak_blocks` does, for predictions that follow ten thousand events each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np

from dippm.costs.edges import IndexArray
from dippm.errors import UsageError

__all__ = ["BLOCK_BYTES", "CachingAllocator", "peak_blocks"]

#: Every request is rounded up to a multiple of this.
BLOCK_BYTES = 512

# All sizes and addresses below are in blocks of 512 bytes.
_SMALL_REQUEST = 2**20 // BLOCK_BYTES
_SMALL_SEGMENT = 2 * 2**20 // BLOCK_BYTES
_LARGE_SEGMENT = 20 * 2**20 // BLOCK_BYTES
_OWN_SEGMENT = 10 * 2**20 // BLOCK_BYTES
_SEGMENT_STEP = 2 * 2**20 // BLOCK_BYTES
# A free block is one number, its size above its address, so that sorting by it is sorting as the allocator does.
_ADDRESS_BITS = 64
_LARGEST_ADDRESS = 2**61
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1


def _segment(blocks: int) -> int:
    if blocks <= _SMALL_REQUEST:
        return _SMALL_SEGMENT
    if blocks < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-blocks // _SEGMENT_STEP) * _SEGMENT_STEP


def peak_blocks(events: IndexArray, sizes: IndexArray, pieces: int, capacity: int, before_restart: int) -> int:
    """Most blocks of 512 bytes that a new allocator holds over a run, -1 where the capacity does not suffice.

    Args:
        events: As :meth:`CachingAllocator.replay` takes them.
        sizes: Size of each event's piece, blocks.
        pieces: Highest number of a piece.
        capacity: Blocks that the device has.
        before_restart: How many events come before cached memory is given back and a new peak begins, as
            ``torch.cuda.empty_cache`` and ``reset_peak_memory_stats`` do; -1 for never.

    Raises:
        LookupError: A piece is given back that was not taken, or has a higher number.
        OverflowError: Addresses reach beyond 2^61 blocks.

    Shapes:
        events, sizes: [n].
    """
    allocator = CachingAllocator(capacity * BLOCK_BYTES, pieces=pieces)
    given, asked = events.tolist(), np.maximum(sizes, 0).tolist()
    split = before_restart if 0 <= before_restart <= len(given) else None
    try:
        has_room = allocator.replay(given[:split], asked[:split])
        if split is not None and has_room:
            allocator.restart()
            has_room = allocator.replay(given[split:], asked[split:])
    except UsageError as exc:
        raise LookupError(str(exc)) from exc
    if allocator.end_blocks >= _LARGEST_ADDRESS:
        raise OverflowError("The pieces do not fit into 64-bit addresses.")
    return allocator.peak_reserved_bytes // BLOCK_BYTES if has_room else -1


def _in_blocks(capacity_bytes: int | None) -> float:
    return float("inf") if capacity_bytes is None else capacity_bytes // BLOCK_BYTES


class CachingAllocator:
    """The allocator's state.

    Addresses are numbers of 512-byte blocks; those of different segments never touch. What is taken is known by the
    number of its piece, from 1.

    Args:
        capacity_bytes: Device memory that it may hold; None for as much as it asks for.
        pieces: Highest number that a piece of a replay has.
    """

    __slots__ = (
        "_capacity",
        "_end",
        "_free_by_end",
        "_free_by_start",
        "_large",
        "_length",
        "_peak",
        "_reserved",
        "_segments",
        "_small",
        "_where",
    )

    def __init__(self, capacity_bytes: int | None = None, *, pieces: int = 0) -> None:
        self._capacity = _in_blocks(capacity_bytes)
        # Free blocks, sorted; the same by the address where they start, and by the one where they end.
        self._small: list[int] = []
        self._large: list[int] = []
        self._free_by_start: dict[int, int] = {}
        self._free_by_end: dict[int, int] = {}
        # Where each piece lies and how large its block is, 0 while it is not taken.
        self._where = [0] * (pieces + 1)
        self._length = [0] * (pieces + 1)
        # Segments by address, with their size.
        self._segments: dict[int, int] = {}
        self._end = 0
        self._reserved = 0
        self._peak = 0

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that were ever held in segments."""
        return self._peak * BLOCK_BYTES

    @property
    def end_blocks(self) -> int:
        """Where the next segment would begin, in units of 512 bytes."""
        return self._end

    def replay(self, events: Iterable[int], sizes: Iterable[int]) -> bool:
        """Take and give back many pieces.

        Args:
            events: The number of a piece, from 1, where it is taken; its negative where it is given back; 0 where some
                piece is taken and given back at once.
            sizes: Size of the piece of each event in units of 512 bytes; pieces of size 0 are passed over.

        Returns:
            Whether the device had room for all; where not, the replay ends at the first that did not fit.

        Raises:
            UsageError: ``allocator.not_allocated`` where a piece is given back that was not taken.
        """
        where, length = self._where, self._length
        # One flat loop: where nothing is compiled a sweep comes through here ten thousand times.
        small, large, starts, ends = self._small, self._large, self._free_by_start, self._free_by_end
        for event, size in zip(events, sizes, strict=True):
            if not size:
                continue
            if event < 0:
                size = length[-event]
                if not size:
                    raise UsageError(f"Piece {-event} is given back and was not taken.", code="allocator.not_allocated")
                address = where[-event]
                length[-event] = 0
                # Small blocks are always cut to the request, so that its limit holds for the block as well.
                pool = small if size <= _SMALL_REQUEST else large
                end = address + size
                if end in starts:
                    following = starts.pop(end)
                    del pool[bisect_left(pool, following)]
                    end += following >> _ADDRESS_BITS
                if address in ends:
                    previous = ends.pop(address)
                    del pool[bisect_left(pool, previous)]
                    address = previous & _ADDRESS_MASK
                block = end - address << _ADDRESS_BITS | address
                insort(pool, block)
                starts[address] = ends[end] = block
                continue
            pool = small if size <= _SMALL_REQUEST else large
            found = bisect_left(pool, size << _ADDRESS_BITS)
            if found == len(pool):
                if not self._add_segment(pool, size):
                    return False
                found = -1
            if event:
                block = pool.pop(found)
                address = block & _ADDRESS_MASK
                del starts[address]
                rest = (block >> _ADDRESS_BITS) - size
                if rest > _SMALL_REQUEST or (rest and pool is small):
                    start = address + size
                    block = rest << _ADDRESS_BITS | start
                    insort(pool, block)
                    starts[start] = ends[start + rest] = block
                else:
                    size += rest
                    del ends[address + size]
                where[event] = address
                length[event] = size
        return True

    def restart(self) -> None:
        """Give cached memory back and begin a new peak."""
        self._release()
        self._peak = self._reserved

    def _add_segment(self, pool: list[int], blocks: int) -> bool:
        """Take a segment for a request that no free block serves; it ends the pool, as its largest free block."""
        size = _segment(blocks)
        if self._reserved + size > self._capacity:
            self._release()
            if self._reserved + size > self._capacity:
                return False
        address = self._end
        # One block of distance keeps segments from ever being neighbours.
        self._end = address + size + 1
        self._segments[address] = size
        self._reserved += size
        self._peak = max(self._peak, self._reserved)
        block = size << _ADDRESS_BITS | address
        pool.append(block)
        self._free_by_start[address] = self._free_by_end[address + size] = block
        return True

    def _release(self) -> None:
        """Give every segment that is wholly free back to the device."""
        for address, size in list(self._segments.items()):
            block = size << _ADDRESS_BITS | address
            if self._free_by_start.get(address) == block:
                # A segment of 2 MiB is always one of the small pool: the large pool's start at 10 MiB.
                pool = self._small if size == _SMALL_SEGMENT else self._large
                del pool[bisect_left(pool, block)]
                del self._free_by_start[address], self._free_by_end[address + size], self._segments[address]
                self._reserved -= size
