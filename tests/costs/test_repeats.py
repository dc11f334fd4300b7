"""Repeated memory events: found as they are, and passed over without a trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.allocator import CachingAllocator
from dippm.costs.repeats import find_repeats

MIB = 2048


def _chain(sizes, *, layers, before=(), after=()):
    """Each piece is given back as soon as the next is there; every layer takes the same sizes, and touches one."""
    pieces = [*before, *sizes * layers, *after]
    events, asked = [], []
    for number, size in enumerate(pieces, start=1):
        events.append(number)
        asked.append(size)
        if number > 1:
            events.append(1 - number)
            asked.append(pieces[number - 2])
        if size == sizes[0]:
            events.append(0)
            asked.append(size)
    return events, asked


def _find(events, sizes):
    _, kinds = np.unique(sizes, return_inverse=True)
    return find_repeats(np.array(events), kinds)


def _replay(events, sizes, repeats, capacity=None):
    allocator = CachingAllocator(capacity, pieces=max(events))
    fits = allocator.replay(events, sizes, repeats)
    return fits, allocator.peak_reserved_bytes, allocator.blocks, allocator


def test_a_chain_of_equal_layers_is_one_stretch():
    events, sizes = _chain([3 * MIB, 14 * MIB, 100], layers=10, before=[7, 8, 9], after=[5])
    (repeat,) = _find(events, sizes)
    assert repeat.period == 7
    # A piece is taken, the one before is given back, something is touched, the next is taken, and it is given back.
    assert repeat.reach == 4
    # What comes before the layers differs, and so does what follows the last.
    assert 4 <= repeat.start <= 8
    assert len(events) - 5 <= repeat.stop <= len(events)


def test_pieces_held_for_longer_each_time_are_no_repeat():
    # All are given back at the end, in the order in which they were taken: ever farther apart.
    events = [1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6] * 1
    assert _find(events, [MIB] * 12) == ()
    # As in the way down of a U-Net: takes alone, and nothing is given back in the stretch.
    (repeat,) = _find(list(range(1, 41)), [MIB, 2 * MIB] * 20)
    assert (repeat.start, repeat.stop, repeat.period, repeat.reach) == (0, 40, 2, 0)


def test_two_periods_are_no_repeat_worth_following():
    events, sizes = _chain([3 * MIB, 14 * MIB, 100], layers=2)
    assert _find(events, sizes) == ()


def test_a_steady_chain_is_passed_over(monkeypatch):
    events, sizes = _chain([3 * MIB, 14 * MIB, 100], layers=50)
    repeats = _find(events, sizes)
    expected = _replay(events, sizes, ())[:3]
    followed = []
    real = CachingAllocator._replay

    def count(self, events, sizes):
        followed.append(len(events))
        return real(self, events, sizes)

    monkeypatch.setattr(CachingAllocator, "_replay", count)
    assert _replay(events, sizes, repeats)[:3] == expected
    assert sum(followed) < len(events) / 5


def test_layers_that_hold_more_and_more_are_followed_to_the_end():
    events, sizes = list(range(1, 41)), [MIB, 12 * MIB] * 20
    repeats = _find(events, sizes)
    assert repeats
    assert _replay(events, sizes, repeats)[:3] == _replay(events, sizes, ())[:3]


def test_a_full_device_ends_the_replay_as_it_would():
    events, sizes = list(range(1, 41)), [MIB, 12 * MIB] * 20
    repeats = _find(events, sizes)
    for capacity_mib in (1, 14, 40, 100, 200, 300):
        ours = _replay(events, sizes, repeats, capacity_mib * 2**20)[:3]
        assert ours == _replay(events, sizes, (), capacity_mib * 2**20)[:3]


_SIZES = st.integers(0, 60_000)


@st.composite
def _layered(draw):
    """Events with a part that repeats: pieces live for up to two layers, and some come from before or stay behind."""
    layer = draw(st.lists(st.tuples(_SIZES, st.integers(0, 12)), min_size=1, max_size=8))
    edge = st.lists(st.tuples(_SIZES, st.integers(1, 60)), max_size=10)
    wanted = [*draw(edge), *layer * draw(st.integers(1, 9)), *draw(edge)]
    events, sizes, due = [], [], {}
    for number, (size, held) in enumerate(wanted, start=1):
        events.append(number if held else 0)
        sizes.append(size)
        if held:
            due.setdefault(number + held, []).append((number, size))
        for old, old_size in due.pop(number, ()):
            events.append(-old)
            sizes.append(old_size)
    return events, sizes


@given(_layered(), st.sampled_from([None, 64 * 2**20, 256 * 2**20]))
def test_passing_over_changes_nothing(layered, capacity):
    events, sizes = layered
    if not max(events) > 0:
        return
    plain, short = _replay(events, sizes, (), capacity), _replay(events, sizes, _find(events, sizes), capacity)
    assert short[:3] == plain[:3]
    if plain[0]:
        # Every piece lies where it did, and what comes later is served alike.
        assert short[3]._length == plain[3]._length
        held = [piece for piece, size in enumerate(plain[3]._length) if size]
        assert [short[3]._where[piece] for piece in held] == [plain[3]._where[piece] for piece in held]
        assert short[3].allocate(3 * MIB) == plain[3].allocate(3 * MIB)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_short_sequences_have_no_repeat(count):
    assert find_repeats(np.arange(1, count + 1), np.zeros(count, dtype=np.int64)) == ()
