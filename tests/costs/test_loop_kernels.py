from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import loop_kernels
from dippm.costs.loop_kernels import Loops

needs_compiled = pytest.mark.skipif(not loop_kernels._IS_COMPILED, reason="dippm was installed without a C compiler")


def _loops(edges: list[tuple[int, int]], *, nodes: int, **given: Any) -> Loops:
    """Loops that read what nodes wrote: pairs of writer and reader."""
    edges = sorted(edges, key=lambda edge: edge[1])
    no, every = np.zeros(nodes, dtype=np.bool_), np.ones(nodes, dtype=np.bool_)
    return replace(
        Loops(
            reader=np.array([reader for _, reader in edges], dtype=np.int64),
            writer=np.array([writer for writer, _ in edges], dtype=np.int64),
            is_view=no,
            is_loop=every,
            is_built=no,
            is_window=no,
            reduces=no,
            part=np.zeros(nodes, dtype=np.int64),
            stretch=np.zeros(nodes, dtype=np.int64),
        ),
        **given,
    )


def _mark(nodes: int, *chosen: int) -> np.ndarray:
    result = np.zeros(nodes, dtype=np.bool_)
    result[list(chosen)] = True
    return result


CHAIN = [(0, 1), (1, 2), (2, 3)]


@pytest.fixture(params=["compiled", "python"])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(loop_kernels, "_IS_COMPILED", False)
    elif not loop_kernels._IS_COMPILED:
        pytest.skip("dippm was installed without a C compiler")


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("given", "kernels"),
    [
        ({}, [3, 3, 3, 3]),
        # A library's call waits, and is waited for.
        ({"is_loop": ~_mark(4, 1)}, [0, 1, 3, 3]),
        # What pools reads its image from memory, what is built in memory is read from there.
        ({"is_window": _mark(4, 2)}, [1, 1, 3, 3]),
        ({"is_built": _mark(4, 1)}, [1, 1, 3, 3]),
        # Two reductions over one stretch, and over two.
        ({"reduces": _mark(4, 1, 3)}, [3, 3, 3, 3]),
        ({"reduces": _mark(4, 1, 3), "stretch": np.array([0, 1, 0, 2])}, [1, 1, 3, 3]),
        ({"part": np.array([0, 0, 1, 1])}, [1, 1, 3, 3]),
        # Views run nothing, and lead nowhere: who wrote what they show is told of each read.
        ({"is_view": _mark(4, 3), "is_loop": ~_mark(4, 3)}, [2, 2, 2, -1]),
    ],
)
def test_a_chain_of_loops_runs_as_one_kernel_but_where_something_waits(given: Any, kernels: list[int]) -> None:
    assert _loops(CHAIN, nodes=4, **given).join().tolist() == kernels


@pytest.mark.usefixtures("language")
def test_what_does_not_follow_stays_apart() -> None:
    assert _loops([(0, 2), (1, 3)], nodes=4).join().tolist() == [2, 3, 2, 3]
    # A call between two loops: they are not one kernel by way of a third that reads both.
    around = _loops([(0, 1), (1, 2), (0, 2)], nodes=3, is_loop=~_mark(3, 1))
    assert around.join().tolist() == [0, 1, 2]
    assert _loops([], nodes=0).join().tolist() == []


@pytest.mark.usefixtures("language")
def test_loops_far_from_each_other_stay_apart() -> None:
    for distance, is_joined in ((64, True), (65, False)):
        kernel = _loops([(0, distance)], nodes=distance + 1).join()
        assert (kernel[0] == distance) == is_joined


@needs_compiled
@given(st.data(), st.integers(1, 25))
def test_both_languages_join_alike(data: st.DataObject, nodes: int) -> None:
    edge = st.tuples(st.integers(-1, nodes - 1), st.integers(0, nodes - 1))
    flags = st.lists(st.booleans(), min_size=nodes, max_size=nodes).map(np.array)
    numbers = st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes).map(lambda values: np.array(values, np.int64))
    names = ("is_view", "is_loop", "is_built", "is_window", "reduces")
    loops = _loops(
        data.draw(st.lists(edge, max_size=3 * nodes)),
        nodes=nodes,
        **{name: data.draw(flags) for name in names},
        part=data.draw(numbers),
        stretch=data.draw(numbers),
    )
    in_python = loops._join(np.cumsum(~loops.is_view).tolist())
    assert loops.join().tolist() == in_python.tolist()


def _arrays(**given: Any) -> list[np.ndarray]:
    arrays = {name: np.zeros(3, dtype=np.int64) for name in ("flags", "part", "stretch", "place", "kernel")}
    arrays = {"reader": np.array([1, 2]), "writer": np.array([0, -1]), **arrays, **given}
    return list(arrays.values())


@needs_compiled
@pytest.mark.parametrize(
    "given",
    [
        {"reader": np.array([1, 3])},
        {"reader": np.array([-1, 2])},
        {"writer": np.array([3, 0])},
        {"writer": np.array([-2, 0])},
        {"writer": np.array([0])},
        {"part": np.zeros(2, dtype=np.int64)},
        {"kernel": np.zeros(4, dtype=np.int64)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(given: Any) -> None:
    loop_kernels._loops.join(*_arrays(), 64)
    with pytest.raises(ValueError, match="do not describe"):
        loop_kernels._loops.join(*_arrays(**given), 64)


@needs_compiled
def test_the_result_is_no_other_array_and_all_are_of_64_bits() -> None:
    memory = np.zeros(4, dtype=np.int64)
    for kernel in (memory[:3], memory[1:]):
        with pytest.raises(ValueError, match="do not describe"):
            loop_kernels._loops.join(*_arrays(flags=memory[:3], kernel=kernel), 64)
    for wrong in (np.zeros(3, dtype=np.int32), np.zeros(3), np.zeros((3, 1), dtype=np.int64)):
        with pytest.raises(TypeError, match="part"):
            loop_kernels._loops.join(*_arrays(part=wrong), 64)
