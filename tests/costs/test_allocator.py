"""Sequences worked through by hand, and properties over random ones. Sizes in units of 512 bytes unless named."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.allocator import BLOCK_BYTES, CachingAllocator
from dippm.errors import UsageError

MIB = 2048


class Allocator(CachingAllocator):
    """One that takes and gives back block by block and shows what it holds; a block is known by its address."""

    @property
    def reserved_bytes(self):
        return self._reserved * BLOCK_BYTES

    @property
    def allocated_bytes(self):
        """A block that was not split counts whole."""
        return sum(self._length) * BLOCK_BYTES

    @property
    def blocks(self):
        """Allocated blocks: address to size."""
        return {address: size for address, size in zip(self._where, self._length, strict=True) if size}

    def allocate(self, blocks):
        """The address of a new block, -1 where the device has no room for it."""
        self._where.append(0)
        self._length.append(0)
        return self._where[-1] if self.replay((len(self._where) - 1,), (blocks,)) else -1

    def free(self, address):
        held = zip(self._where, self._length, strict=True)
        (piece,) = (piece for piece, (place, size) in enumerate(held) if place == address and size)
        self.replay((-piece,), (1,))

    def touch(self, blocks):
        """Whether the device had room for a block that is taken and given back at once."""
        return self.replay((0,), (blocks,))


def _reserved_mib(allocator):
    return allocator.reserved_bytes / 2**20


@pytest.mark.parametrize(
    ("request_bytes", "segment_mib"),
    [
        (1, 2),
        (2**20, 2),
        (2**20 + 1, 20),
        (10 * 2**20 - 512, 20),
        (10 * 2**20, 10),
        (10 * 2**20 + 1, 12),
        (33 * 2**20, 34),
    ],
)
def test_segments_by_request(request_bytes, segment_mib):
    allocator = Allocator()
    allocator.allocate(-(-request_bytes // 512))
    assert _reserved_mib(allocator) == segment_mib


def test_small_requests_share_a_segment_until_it_is_full():
    allocator = Allocator()
    addresses = [allocator.allocate(MIB) for _ in range(2)]
    assert _reserved_mib(allocator) == 2
    assert addresses[1] - addresses[0] == MIB
    allocator.allocate(1)
    assert _reserved_mib(allocator) == 4


def test_the_large_pool_keeps_a_remainder_of_one_mib_inside_the_block():
    allocator = Allocator()
    # 19 MiB of a 20 MiB segment in two pieces leave exactly 1 MiB, too little to be split off.
    for _ in range(2):
        allocator.allocate(19 * MIB // 2)
    assert allocator.allocated_bytes == 20 * 2**20
    allocator = Allocator()
    first = allocator.allocate(9 * MIB)
    second = allocator.allocate(9 * MIB)
    assert second - first == 9 * MIB
    # 2 MiB are left and serve one request of 1.5 MiB whole, for the half that remains cannot be split off.
    allocator.allocate(3 * MIB // 2)
    assert _reserved_mib(allocator) == 20
    assert allocator.allocated_bytes == 20 * 2**20


def test_the_smallest_block_that_is_large_enough_serves():
    allocator = Allocator()
    big, middle, small = allocator.allocate(40 * MIB), allocator.allocate(24 * MIB), allocator.allocate(12 * MIB)
    for address in (big, middle, small):
        allocator.free(address)
    assert allocator.allocate(20 * MIB) == middle
    assert allocator.allocate(12 * MIB) == small
    assert allocator.allocate(40 * MIB) == big
    assert _reserved_mib(allocator) == 76


def test_equal_blocks_are_taken_by_address():
    allocator = Allocator()
    first, second = allocator.allocate(12 * MIB), allocator.allocate(12 * MIB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.allocate(12 * MIB) == first


def test_freed_neighbours_join():
    allocator = Allocator()
    address = allocator.allocate(40 * MIB)
    allocator.free(address)
    parts = [allocator.allocate(10 * MIB) for _ in range(4)]
    for part in (parts[1], parts[3], parts[0], parts[2]):
        allocator.free(part)
    assert allocator.allocate(40 * MIB) == address
    assert _reserved_mib(allocator) == 40


def test_segments_never_join():
    allocator = Allocator()
    for address in [allocator.allocate(12 * MIB), allocator.allocate(12 * MIB)]:
        allocator.free(address)
    allocator.allocate(24 * MIB)
    assert _reserved_mib(allocator) == 48


def test_fragmentation_costs_a_segment():
    allocator = Allocator()
    allocator.free(allocator.allocate(40 * MIB))
    parts = [allocator.allocate(10 * MIB) for _ in range(4)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    # 20 MiB are free in two pieces of 10 MiB; neither serves 12 MiB.
    allocator.allocate(12 * MIB)
    assert _reserved_mib(allocator) == 52
    allocator.free(parts[1])
    allocator.allocate(30 * MIB)
    assert _reserved_mib(allocator) == 52


def test_pools_do_not_help_each_other():
    allocator = Allocator()
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(1)
    assert _reserved_mib(allocator) == 22


def test_touching_leaves_the_blocks_as_they_were():
    allocator = Allocator()
    allocator.allocate(12 * MIB)
    allocator.touch(30 * MIB)
    assert _reserved_mib(allocator) == 42
    allocator.touch(30 * MIB)
    allocator.touch(3 * MIB)
    assert _reserved_mib(allocator) == 42
    assert allocator.allocated_bytes == 12 * 2**20


def test_replay_is_the_same_as_one_call_after_another():
    sizes = {1: 3 * MIB, 2: 0, 3: 14 * MIB, 4: 100}
    events = [1, 2, 3, -1, -2, 4, 1, 0, -3]
    replayed, stepwise = Allocator(pieces=4), Allocator()
    assert replayed.replay(events, [sizes.get(abs(event), 15 * MIB) for event in events])
    first = stepwise.allocate(3 * MIB)
    large = stepwise.allocate(14 * MIB)
    stepwise.free(first)
    stepwise.allocate(100)
    stepwise.allocate(3 * MIB)
    stepwise.free(stepwise.allocate(15 * MIB))
    stepwise.free(large)
    assert len(replayed.blocks) == 2
    assert replayed.blocks == stepwise.blocks
    assert replayed.reserved_bytes == stepwise.reserved_bytes


def test_wholly_free_segments_go_back_when_the_device_is_full():
    allocator = Allocator(64 * 2**20)
    kept, gone = allocator.allocate(20 * MIB), allocator.allocate(30 * MIB)
    small = allocator.allocate(1)
    piece = allocator.allocate(MIB // 2)
    allocator.free(gone)
    allocator.free(small)
    # 52 MiB are held, 30 of them free; 40 MiB more only fit once those 30 are back.
    large = allocator.allocate(40 * MIB)
    assert _reserved_mib(allocator) == 62
    assert allocator.peak_reserved_bytes == 62 * 2**20
    # The segment that still holds a small piece stays, and nothing else can be given back.
    assert allocator.allocate(3 * MIB) == -1
    assert not allocator.touch(3 * MIB)
    assert allocator.touch(MIB)
    for address in (kept, piece):
        allocator.free(address)
    assert allocator.touch(22 * MIB)
    assert _reserved_mib(allocator) == 62
    assert allocator.blocks == {large: 40 * MIB}


def test_replay_stops_where_the_device_is_full():
    allocator = Allocator(30 * 2**20, pieces=2)
    assert allocator.replay([1, -1, 2], [20 * MIB, 20 * MIB, 30 * MIB])
    assert not allocator.replay([1, 2], [2, 1])
    assert not allocator.replay([0], [MIB])


@pytest.mark.parametrize("before", [[], [1, -1]])
def test_giving_back_what_was_not_taken_is_refused(before):
    allocator = CachingAllocator(pieces=1)
    assert allocator.replay(before, [1] * len(before))
    with pytest.raises(UsageError) as caught:
        allocator.replay([-1], [1])
    assert caught.value.code == "allocator.not_allocated"


_STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60_000)), max_size=120)


@given(_STEPS)
def test_blocks_never_overlap_and_all_memory_is_accounted_for(steps):
    allocator = Allocator()
    requested: dict[int, int] = {}
    for action, size in steps:
        if action == 0 and requested:
            address = sorted(requested)[size % len(requested)]
            del requested[address]
            allocator.free(address)
        else:
            address = allocator.allocate(size)
            assert address not in requested
            requested[address] = size
        blocks = sorted(allocator.blocks.items())
        for (start, length), (following, _) in pairwise(blocks):
            assert start + length <= following
        assert all(allocator.blocks[address] >= size for address, size in requested.items())
        assert allocator.reserved_bytes >= allocator.allocated_bytes >= 512 * sum(requested.values())
    for address in requested:
        allocator.free(address)
    # With everything given back each segment is one free block again: the same requests fit without growing.
    reserved = allocator.reserved_bytes
    assert allocator.allocated_bytes == 0
    assert {address: allocator._segments[address] for address in allocator._free_by_start} == allocator._segments
    assert sum(allocator._segments.values()) * 512 == reserved
    free = sorted(allocator._small + allocator._large)
    assert sorted(allocator._free_by_start.values()) == sorted(allocator._free_by_end.values()) == free
