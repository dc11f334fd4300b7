from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.errors import UnsupportedError
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.slice_bounds import SliceBounds, check_slices
from dippm.predictors.answerable import check_answerable

make = helper.make_node
ENDS = [10_000_000, 2**31 - 1, 2**63 - 2, 2**63 - 1]


def cut(build: Any, start: int, stop: int, *, axis: int = 0, step: int = 1, batch: int | str = "N") -> onnx.ModelProto:
    nodes = [make("Slice", ["x", "start", "stop", "axis", "step"], ["s"]), make("Relu", ["s"], ["y"])]
    numbers = {"start": start, "stop": stop, "axis": axis, "step": step}
    return build(nodes, weights={name: np.array([each]) for name, each in numbers.items()}, inputs={"x": [batch, 8]})


@pytest.mark.parametrize("stop", [4, 63, 64, 65, 100, 5000])
def test_the_first_places_of_a_batch_fix_it(build, stop: int) -> None:
    model = cut(build, 0, stop)
    with pytest.raises(UnsupportedError) as caught:
        read_onnx(model)
    assert caught.value.code == "graph.batch_dependent"
    graph = read_onnx(model, batch_hint=200)
    assert graph.fixed_batch == 200
    assert f"(0:{stop} of 2 at batch 2, 0:{stop} of 3 at batch 3)" in graph.fixed_batch_reason
    assert graph.tensors[graph.outputs[0]].shape[0].fixed == min(stop, 200)


@pytest.mark.parametrize(
    ("start", "stop"), [(-64, 2**63 - 1), (-100, -1), (64, 2**63 - 1), (70, 200), (2, 64), (0, -64)]
)
def test_so_do_other_places_that_are_counted(build, start: int, stop: int) -> None:
    model = cut(build, start, stop)
    with pytest.raises(UnsupportedError, match="reaches beyond its dimension"):
        read_onnx(model)
    graph = read_onnx(model, batch_hint=7)
    assert graph.fixed_batch == 7
    assert graph.tensors[graph.outputs[0]].shape[0].fixed == len(range(7)[start:stop])


@pytest.mark.parametrize("stop", [64, 100])
def test_a_file_of_one_batch_keeps_to_it(build, stop: int) -> None:
    graph = read_onnx(cut(build, 0, stop, batch=1))
    assert graph.fixed_batch == 1
    assert "reaches beyond its dimension" in graph.fixed_batch_reason
    halves = read_onnx(cut(build, 64, 128, batch=128))
    assert halves.fixed_batch == 128
    assert read_onnx(cut(build, 0, stop, batch=stop)).fixed_batch is None  # the file's own batch


@pytest.mark.parametrize(
    ("start", "stop", "step", "rows"),
    [
        *((0, stop, 1, "N") for stop in ENDS),
        (-(2**63), 2**63 - 1, 1, "N"),
        (-1, -(2**63), -1, "N"),
        (1, 2**63 - 1, 1, "N-1"),
        (0, -1, 1, "N-1"),
        (0, 1, 1, "1"),
        (-1, 2**63 - 1, 1, "1"),
        (1, 2, 1, "1"),
    ],
)
def test_slices_that_follow_any_batch_leave_it_open(build, shape_of, start, stop, step, rows) -> None:
    graph = read_onnx(cut(build, start, stop, step=step))
    assert graph.fixed_batch is None
    assert shape_of(graph, graph.outputs[0]) == [rows, "8"]


@pytest.mark.parametrize("stop", [5, 8, 64, 1000])
def test_a_dimension_other_than_the_batch_is_cut_as_before(build, shape_of, stop: int) -> None:
    graph = read_onnx(cut(build, 0, stop, axis=1))
    assert shape_of(graph, graph.outputs[0]) == ["N", str(min(stop, 8))]


@pytest.mark.parametrize(("start", "stop"), [(1, 2), (0, -2), (2, 2**63 - 1)])
def test_a_batch_of_one_that_is_too_small_for_a_slice_is_read_alone(build, start: int, stop: int) -> None:
    model = cut(build, start, stop)
    larger = read_onnx(model, batch_hint=2)
    assert (larger.fixed_batch, larger.smallest_batch) == (None, 2)
    with pytest.raises(UnsupportedError, match=r"holds from batch 2 on: .* Got 1\."):
        check_answerable(larger, [8, 1])
    graph = read_onnx(model, batch_hint=1)
    assert graph.fixed_batch == 1
    assert graph.tensors[graph.outputs[0]].shape[0].fixed == 0


def as_many_as_samples(build: Any, rows: int) -> onnx.ModelProto:
    nodes = [make("Shape", ["x"], ["n"], end=1), make("Slice", ["table", "zero", "n"], ["s"])]
    weights = {"zero": np.array([0]), "table": np.zeros((rows, 8), dtype=np.float32)}
    return build([*nodes, make("MatMul", ["s", "x"], ["y"])], weights=weights, inputs={"x": ["N", 8, 8]})


def test_as_many_rows_as_samples(build) -> None:
    assert read_onnx(as_many_as_samples(build, 5000)).fixed_batch is None
    with pytest.raises(UnsupportedError, match="0:2 of 2 at batch 2, 0:3 of 2 at batch 3"):
        read_onnx(as_many_as_samples(build, 2))  # one row at a batch of 1


def test_numbers_worked_out_while_reading_are_slices_too(build) -> None:
    nodes = [
        make("Shape", ["x"], ["n"], end=1),
        make("Squeeze", ["n"], ["limit"]),
        make("Range", ["first", "limit", "one"], ["places"]),
        make("Slice", ["places", "zero", "most"], ["few"]),
        make("Gather", ["x", "few"], ["y"]),
    ]
    weights = {"first": np.array(0), "one": np.array(1), "zero": np.array([0]), "most": np.array([64])}
    with pytest.raises(UnsupportedError, match="'few' reaches beyond its dimension"):
        read_onnx(build(nodes, weights=weights, inputs={"x": ["N", 8]}))


def test_a_fixed_dimension_may_be_cut_beyond_its_end_at_every_batch() -> None:
    first = {(4, 0): SliceBounds("s", 512, -1000, 2), (5, 0): SliceBounds("only here", 2, 0, 64)}
    second = {(4, 0): SliceBounds("s", 512, -1000, 3)}
    check_slices(first, second, batches=(2, 3), smallest=1)
