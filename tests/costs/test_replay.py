"""The allocator in C against the one in Python, and what is asked of either."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import MemoryTimeline, Workload, allocator, reserved_bytes
from dippm.errors import UnsupportedError
from dippm.graph import OpKind, TensorRole

_MIB = 2**20
_UNLIMITED = 2**51
_HAS_COMPILED = find_spec("dippm.costs._replay") is not None

needs_compiled = pytest.mark.skipif(not _HAS_COMPILED, reason="dippm was installed without a C compiler")

# Blocks of 512 bytes: what is at the borders of the pools, and anything.
_SIZES = st.one_of(
    st.sampled_from([-3, 0, 1, 2047, 2048, 2049, 20479, 20480, 20481, 38912, 40960, 61440]), st.integers(0, 70_000)
)
_STEPS = st.lists(st.tuples(st.integers(0, 7), _SIZES), max_size=300)


def compiled(events, sizes, pieces, capacity, before_restart=-1):
    from dippm.costs._replay import peak_blocks

    arrays = (np.array(column, dtype=np.int64) for column in (events, sizes))
    return peak_blocks(*arrays, pieces, capacity, before_restart)


def in_python(events, sizes, pieces, capacity, before_restart=-1):
    arrays = (np.array(column, dtype=np.int64) for column in (events, sizes))
    return allocator.peak_blocks(*arrays, pieces, capacity, before_restart)


def events_of(steps):
    """Take three times as often as give back, and sometimes only touch."""
    events, sizes, alive = [], [], []
    taken = 0
    for action, size in steps:
        if action == 0:
            events.append(0)
            sizes.append(size)
        elif action <= 2 and alive:
            piece, own = alive.pop(size % len(alive))
            events.append(-piece)
            sizes.append(own)
        else:
            taken += 1
            alive.append((taken, size))
            events.append(taken)
            sizes.append(size)
    return events, sizes, taken


def test_a_compiler_was_used_where_there_is_one():
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    assert _HAS_COMPILED


@needs_compiled
@given(_STEPS, st.sampled_from([_UNLIMITED, 0, 100_000, 400_000, 1_500_000]), st.integers(-1, 301))
def test_both_hold_the_same_at_any_capacity(steps, capacity, before_restart):
    events, sizes, pieces = events_of(steps)
    of_both = (each(events, sizes, pieces, capacity, before_restart) for each in (compiled, in_python))
    assert len(set(of_both)) == 1


@pytest.mark.parametrize("follow", [pytest.param(compiled, marks=needs_compiled), in_python])
def test_a_new_peak_begins_with_what_is_not_wholly_free(follow):
    events, sizes = [1, 2, 3, -1, -3], [30_000, 15_000, 15_000, 30_000, 15_000]
    # A segment of 32,768 for the first, one of 40,960 for the two others, of which one block stays.
    assert follow(events, sizes, 3, _UNLIMITED) == 32_768 + 40_960
    assert follow(events, sizes, 3, _UNLIMITED, 5) == 40_960
    assert follow([*events, 1], [*sizes, 30_000], 3, _UNLIMITED, 5) == 32_768 + 40_960
    assert follow(events, sizes, 3, _UNLIMITED, 0) == 32_768 + 40_960
    assert follow(events, sizes, 3, 40_000, 5) == -1


@needs_compiled
def test_both_hold_the_same_over_a_long_run():
    rng = np.random.default_rng(0)
    steps = zip(
        rng.integers(0, 8, 40_000).tolist(), np.exp(rng.uniform(0, 11, 40_000)).astype(int).tolist(), strict=True
    )
    events, sizes, pieces = events_of(steps)
    whole = in_python(events, sizes, pieces, _UNLIMITED)
    for capacity in (_UNLIMITED, whole, whole - 1, int(0.9 * whole), int(0.5 * whole)):
        assert compiled(events, sizes, pieces, capacity) == in_python(events, sizes, pieces, capacity)


@needs_compiled
@pytest.mark.parametrize(
    ("events", "sizes", "pieces", "error"),
    [
        ([-1], [1], 1, LookupError),
        ([1, -1, -1], [1, 1, 1], 1, LookupError),
        ([2], [1], 1, LookupError),
        ([-(2**62)], [1], 1, LookupError),
        ([1], [1, 2], 1, ValueError),
        ([1], [1], -1, ValueError),
        ([1], [1], 2**40, ValueError),
        ([1], [2**62], 1, OverflowError),
        ([1, 2, 3], [2**60, 2**60, 2**60], 3, OverflowError),
    ],
)
def test_what_makes_no_sense_is_refused(events, sizes, pieces, error):
    with pytest.raises(error):
        compiled(events, sizes, pieces, 2**62)
    if error is not ValueError:
        with pytest.raises(error):
            in_python(events, sizes, pieces, 2**62)


@needs_compiled
@pytest.mark.parametrize(
    "array", [[1, 2], np.array([1.0]), np.array([1], dtype=np.int32), np.array([[1]]), b"12345678"]
)
def test_only_arrays_of_64_bit_integers_are_taken(array):
    from dippm.costs._replay import peak_blocks

    good = np.array([1], dtype=np.int64)
    with pytest.raises(TypeError):
        peak_blocks(array, good, 1, 10, -1)
    with pytest.raises(TypeError):
        peak_blocks(good, array, 1, 10, -1)


def timeline_of(builder):
    x = builder.input(builder.N, 3 * _MIB)
    for width in (5, 2, 7, 1):
        x = builder.node(OpKind.TANH, [x], builder.N, width * _MIB // 4)
    return MemoryTimeline.from_workload(Workload.from_graph(builder.graph()))


@pytest.fixture(params=["compiled", "python"])
def replayed(request, monkeypatch):
    """Counts how often the allocator is followed, in either language."""
    if request.param == "compiled" and not _HAS_COMPILED:
        pytest.skip("dippm was installed without a C compiler")
    chosen = allocator.peak_blocks
    if request.param == "compiled":
        from dippm.costs._replay import peak_blocks as chosen
    calls = []

    def count(*arguments):
        calls.append(arguments)
        return chosen(*arguments)

    monkeypatch.setattr("dippm.costs.replay.peak_blocks", count)
    return calls


def test_an_answer_is_kept_for_its_batch_and_its_capacity(builder, new_builder, replayed):
    timeline = timeline_of(builder)
    asked = [(batch, capacity) for batch in (1, 8) for capacity in (None, 40 * _MIB, 300 * _MIB)] * 2
    kept = [reserved_bytes(timeline, [batch], capacity_bytes=capacity).item() for batch, capacity in asked]
    assert len(replayed) == 6
    again = timeline_of(new_builder())
    assert kept == [reserved_bytes(again, [batch], capacity_bytes=capacity).item() for batch, capacity in asked]
    # Of one sample the input has 12 MiB of its own, 5, 2 and 7 share 20 MiB, and 1 is of the small pool. Of eight, 96,
    # 40, 16 and 56 MiB stand alone, and 8 MiB lie in what was given back.
    assert kept[:6] == [34 * _MIB, 34 * _MIB, 34 * _MIB, 208 * _MIB, -1, 208 * _MIB]
    assert reserved_bytes(timeline, [8, 1]).tolist() == [kept[3], kept[0]]
    assert len(replayed) == 12


def test_absurd_batches_are_counted_as_far_as_64_bits_reach(builder, replayed, monkeypatch):
    timeline = timeline_of(builder)
    assert reserved_bytes(timeline, [10**11]).item() > 2**60

    def overflow(*_):
        raise OverflowError

    monkeypatch.setattr("dippm.costs.replay.peak_blocks", overflow)
    with pytest.raises(UnsupportedError) as caught:
        reserved_bytes(timeline, [10**12])
    assert caught.value.code == "graph.too_large"


def _decoder(builder, tokens):
    """Four layers, whose caches of 256 bytes a token grow by one each."""
    n, outputs = builder.N, []
    token = builder.input(n, 1, 64)
    for _ in range(4):
        cache = builder.tensor(n, tokens, 64, role=TensorRole.CACHE)
        outputs.append(builder.node(OpKind.CONCAT, [cache, token], n, tokens + 1, 64, releases=[cache]))
    graph = builder.graph(*outputs, has_lifetimes=True)
    tensors = [
        replace(each, role=TensorRole.CACHE) if place in outputs else each for place, each in enumerate(graph.tensors)
    ]
    return MemoryTimeline.from_workload(Workload.from_graph(replace(graph, tensors=tuple(tensors))))


def test_a_cache_that_fills_its_blocks_needs_no_more_than_one_that_nearly_does(new_builder):
    # 81,920 tokens are 20 MiB, which the allocator takes as they are.
    before, at, behind = (
        reserved_bytes(_decoder(new_builder(), tokens), [1], capacity_bytes=None)[0] / _MIB
        for tokens in (81_919, 81_920, 81_921)
    )
    # Each old cache with the token that it gets, the first layer's new one, and the small block of the token.
    assert before == 4 * 20 + 20 + 2
    assert at == behind == 4 * 22 + 22 + 2
