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
from collections.abc import Iterable, Sequence

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


class CachingAllocator:
    """The allocator's state.

    Addresses are numbers of 512-byte blocks; those of different segments never touch.

    Args:
        capacity_bytes: Device memory that it may hold; None for as much as it asks for.
    """

    __slots__ = (
        "_capacity",
        "_end",
        "_free_by_end",
        "_free_by_start",
        "_large",
        "_peak",
        "_reserved",
        "_segments",
        "_size",
        "_small",
    )

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._capacity = float("inf") if capacity_bytes is None else capacity_bytes // BLOCK_BYTES
        self._small: list[int] = []
        self._large: list[int] = []
        # Free blocks by where they start (to their size) and by where they end (to their start).
        self._free_by_start: dict[int, int] = {}
        self._free_by_end: dict[int, int] = {}
        # Allocated blocks: address to size, negative in the small pool.
        self._size: dict[int, int] = {}
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
        """Bytes in allocated blocks; a block that was not split counts whole."""
        return sum(abs(size) for size in self._size.values()) * BLOCK_BYTES

    @property
    def blocks(self) -> dict[int, int]:
        """Allocated blocks: address to size, both in units of 512 bytes."""
        return {address: abs(size) for address, size in self._size.items()}

    def copy(self) -> CachingAllocator:
        """An independent allocator in the same state."""
        other = CachingAllocator()
        other._small = self._small.copy()
        other._large = self._large.copy()
        other._free_by_start = self._free_by_start.copy()
        other._free_by_end = self._free_by_end.copy()
        other._size = self._size.copy()
        other._segments = self._segments.copy()
        other._capacity = self._capacity
        other._end = self._end
        other._reserved = self._reserved
        other._peak = self._peak
        return other

    def allocate(self, blocks: int) -> int:
        """Take a block.

        Args:
            blocks: Size in units of 512 bytes, at least 1.

        Returns:
            Its address, to be given to :meth:`free`, or -1 where the device has no room for it.
        """
        is_small = blocks <= _SMALL_REQUEST
        pool = self._small if is_small else self._large
        found = bisect_left(pool, blocks << _ADDRESS_BITS)
        if found < len(pool):
            block = pool.pop(found)
            size = block >> _ADDRESS_BITS
            address = block & _ADDRESS_MASK
            del self._free_by_start[address]
            del self._free_by_end[address + size]
        else:
            size = _segment(blocks)
            if self._reserved + size > self._capacity:
                self._release()
                if self._reserved + size > self._capacity:
                    return -1
            address = self._end
            # One block of distance keeps segments from ever being neighbours.
            self._end = address + size + 1
            self._segments[address] = size
            self._reserved += size
            if self._reserved > self._peak:
                self._peak = self._reserved
        rest = size - blocks
        if rest > 0 and (is_small or rest > _SMALL_REQUEST):
            start = address + blocks
            insort(pool, rest << _ADDRESS_BITS | start)
            self._free_by_start[start] = rest
            self._free_by_end[start + rest] = start
            size = blocks
        self._size[address] = -size if is_small else size
        return address

    def free(self, address: int) -> None:
        """Give a block back.

        Raises:
            UsageError: ``allocator.not_allocated`` where no block is allocated at the address.
        """
        size = self._size.pop(address, 0)
        if size == 0:
            raise UsageError(f"No block is allocated at {address}.", code="allocator.not_allocated")
        pool = self._large
        if size < 0:
            pool = self._small
            size = -size
        end = address + size
        following = self._free_by_start.pop(end, 0)
        if following:
            del pool[bisect_left(pool, following << _ADDRESS_BITS | end)]
            end += following
        previous = self._free_by_end.pop(address, -1)
        if previous >= 0:
            del pool[bisect_left(pool, (address - previous) << _ADDRESS_BITS | previous)]
            address = previous
        size = end - address
        insort(pool, size << _ADDRESS_BITS | address)
        self._free_by_start[address] = size
        self._free_by_end[end] = address

    def _release(self) -> None:
        """Give every segment that is wholly free back to the device."""
        free = [(address, size) for address, size in self._segments.items() if self._free_by_start.get(address) == size]
        for address, size in free:
            # A segment of 2 MiB is always one of the small pool: the large pool's start at 10 MiB.
            pool = self._small if size == _SMALL_SEGMENT else self._large
            del pool[bisect_left(pool, size << _ADDRESS_BITS | address)]
            del self._free_by_start[address], self._free_by_end[address + size], self._segments[address]
            self._reserved -= size

    def touch(self, blocks: int) -> bool:
        """Take a block and give it back at once; this can only add a segment.

        Args:
            blocks: Size in units of 512 bytes, at least 1.

        Returns:
            Whether the device had room for it.
        """
        pool = self._small if blocks <= _SMALL_REQUEST else self._large
        if bisect_left(pool, blocks << _ADDRESS_BITS) == len(pool):
            address = self.allocate(blocks)
            if address < 0:
                return False
            self.free(address)
        return True

    def replay(self, events: Iterable[int], blocks: Sequence[int]) -> bool:
        """Take and give back many blocks.

        Args:
            events: The number of a piece that is taken; its complement ``~piece`` where it is given back;
                ``piece + len(blocks)`` where it is taken and given back at once.
            blocks: Size of each piece in units of 512 bytes; pieces of size 0 are passed over.

        Returns:
            Whether the device had room for all; where not, the replay ends at the first that did not fit.

        Raises:
            UsageError: ``allocator.not_allocated`` where a piece is given back that was not taken.
        """
        allocate, free, touch, count = self.allocate, self.free, self.touch, len(blocks)
        address: dict[int, int] = {}
        for event in events:
            if event < 0:
                if blocks[event := ~event]:
                    free(address.pop(event, -1))
            elif event >= count:
                if (size := blocks[event - count]) and not touch(size):
                    return False
            elif size := blocks[event]:
                address[event] = place = allocate(size)
                if place < 0:
                    return False
        return True
