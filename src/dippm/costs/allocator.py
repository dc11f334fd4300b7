"""PyTorch's CUDA caching allocator, as far as it decides how much device memory a process holds.

Rules and constants: ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDACachingAllocator.cpp``, PyTorch 2.13, default
settings, one stream. A request is rounded up to 512 bytes. Up to 1 MiB it comes from a pool of 2 MiB segments, larger
ones from a pool of 20 MiB segments, and from 10 MiB on from a segment of its own, rounded up to 2 MiB. The smallest
free block that is large enough serves it and is split where enough remains (512 bytes in the small pool, more than
1 MiB in the large one). A freed block joins its free neighbours. Segments are kept until the device has no room for a
new one; then all segments that are wholly free go back to the device at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from dippm.costs.repeats import Repeat
from dippm.errors import UsageError

__all__ = ["BLOCK_BYTES", "CachingAllocator", "segment_bytes"]

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
# Layers that are alike change places between two or three blocks.
_LONGEST_CYCLE = 6
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1


def segment_bytes(request_bytes: int) -> int:
    """Size of the segment that the allocator would take from the device for a request, bytes."""
    return _segment(-(-request_bytes // BLOCK_BYTES)) * BLOCK_BYTES


def _segment(blocks: int) -> int:
    if blocks <= _SMALL_REQUEST:
        return _SMALL_SEGMENT
    if blocks < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-blocks // _SEGMENT_STEP) * _SEGMENT_STEP


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
    def reserved_bytes(self) -> int:
        """Bytes held in segments."""
        return self._reserved * BLOCK_BYTES

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that were ever held in segments."""
        return self._peak * BLOCK_BYTES

    @property
    def allocated_bytes(self) -> int:
        """Bytes in allocated blocks but those of :meth:`fill`; a block that was not split counts whole."""
        return sum(self._length) * BLOCK_BYTES

    @property
    def blocks(self) -> dict[int, int]:
        """Allocated blocks: address to size, both in units of 512 bytes; without those of :meth:`fill`."""
        return {address: size for address, size in zip(self._where, self._length, strict=True) if size}

    def copy(self, capacity_bytes: int | None = None) -> CachingAllocator:
        """An independent allocator in the same state.

        Args:
            capacity_bytes: Device memory that the copy may hold; None for as much as it asks for.
        """
        other = CachingAllocator(capacity_bytes)
        other._small = self._small.copy()
        other._large = self._large.copy()
        other._free_by_start = self._free_by_start.copy()
        other._free_by_end = self._free_by_end.copy()
        other._where = self._where.copy()
        other._length = self._length.copy()
        other._segments = self._segments.copy()
        other._end = self._end
        other._reserved = self._reserved
        other._peak = self._peak
        return other

    def allocate(self, blocks: int) -> int:
        """Take a block as a new piece.

        Args:
            blocks: Size in units of 512 bytes, at least 1.

        Returns:
            Its address, to be given to :meth:`free`, or -1 where the device has no room for it.
        """
        self._where.append(0)
        self._length.append(0)
        return self._where[-1] if self.replay((len(self._where) - 1,), (blocks,)) else -1

    def free(self, address: int) -> None:
        """Give a block back, in time linear in the pieces.

        Raises:
            UsageError: ``allocator.not_allocated`` where no block is allocated at the address.
        """
        for piece, (place, size) in enumerate(zip(self._where, self._length, strict=True)):
            if place == address and size:
                self.replay((-piece,), (size,))
                return
        raise UsageError(f"No block is allocated at address {address}.", code="allocator.not_allocated")

    def touch(self, blocks: int) -> bool:
        """Take a block and give it back at once; this can only add a segment.

        Args:
            blocks: Size in units of 512 bytes, at least 1.

        Returns:
            Whether the device had room for it.
        """
        return self.replay((0,), (blocks,))

    def replay(self, events: Sequence[int], sizes: Sequence[int], repeats: Sequence[Repeat] = ()) -> bool:
        """Take and give back many pieces.

        Where the events repeat and a period leaves the allocator as one before it did, so do those that follow it: they
        are passed over, and the pieces that are left lie where their counterparts did. The result is the same.

        Args:
            events: The number of a piece, from 1, where it is taken; its negative where it is given back; 0 where some
                piece is taken and given back at once.
            sizes: Size of the piece of each event in units of 512 bytes; pieces of size 0 are passed over.
            repeats: Disjoint stretches, in their order, in which events repeat: the same sizes are taken, touched and
                given back, each as long after it was taken.

        Returns:
            Whether the device had room for all; where not, the replay ends at the first that did not fit.

        Raises:
            UsageError: ``allocator.not_allocated`` where a piece is given back that was not taken.
        """
        done = 0
        for repeat in repeats:
            period = repeat.period
            stop = repeat.start + period
            if not self._replay(events[done:stop], sizes[done:stop]):
                return False
            seen: list[tuple[object, ...]] = []
            while stop + period <= repeat.stop:
                state = self._state(events[max(0, stop - repeat.reach) : stop])
                if state in seen:
                    cycle = (len(seen) - seen.index(state)) * period
                    last = stop + (repeat.stop - stop) // cycle * cycle
                    self._rename(events[stop - repeat.reach : stop], events[last - repeat.reach : last])
                    stop = last
                    break
                seen = [*seen[1 - _LONGEST_CYCLE :], state]
                if not self._replay(events[stop : stop + period], sizes[stop : stop + period]):
                    return False
                stop += period
            done = stop
        return self._replay(events[done:], sizes[done:])

    def fill(self, sizes: Sequence[int]) -> bool:
        """Take pieces that stay: what :meth:`replay` would do, in two thirds of the time and without knowing them.

        Args:
            sizes: Sizes in units of 512 bytes; pieces of size 0 are passed over.

        Returns:
            Whether the device had room for all.
        """
        small, large, starts = self._small, self._large, self._free_by_start
        has_room = True
        for size in sizes:
            if not size:
                continue
            pool = small if size <= _SMALL_REQUEST else large
            found = bisect_left(pool, size << _ADDRESS_BITS)
            if found == len(pool) and not self._add_segment(pool, size):
                has_room = False
                break
            block = pool.pop(found)
            address = block & _ADDRESS_MASK
            starts.pop(address, None)
            rest = (block >> _ADDRESS_BITS) - size
            if rest > _SMALL_REQUEST or (rest and pool is small):
                insort(pool, rest << _ADDRESS_BITS | address + size)
        # Nothing is given back meanwhile: where free blocks begin and end is asked of whole segments alone.
        free = [(block & _ADDRESS_MASK, block) for block in (*small, *large)]
        self._free_by_start = dict(free)
        self._free_by_end = {address + (block >> _ADDRESS_BITS): block for address, block in free}
        return has_room

    def _state(self, recent: Sequence[int]) -> tuple[object, ...]:
        """What decides where later pieces go: free blocks, segments, and where recent events have left their pieces.

        Equal counts of segments and free blocks mean that a period gave back as much as it took; places are told apart
        by their addresses, which no two live pieces share.
        """
        where, length = self._where, self._length
        places = [(where[event], length[event]) for event in recent if event > 0]
        return self._end, self._reserved, self._small.copy(), self._large.copy(), places

    def _rename(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Let pieces of later events be where those of as many earlier ones are."""
        where, length = self._where, self._length
        pairs = [(after, where[before], length[before]) for before, after in zip(old, new, strict=True) if before > 0]
        for event in old:
            if event > 0:
                length[event] = 0
        for piece, address, size in pairs:
            where[piece], length[piece] = address, size

    def _replay(self, events: Sequence[int], sizes: Sequence[int]) -> bool:
        where, length = self._where, self._length
        # One flat loop: a sweep over batches and devices comes through here ten thousand times.
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
