"""A loop that reduces looked-up rows bag by bag is the one kernel of ``nn.EmbeddingBag``; other loops are loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

from dippm.frontends.onnx import read_onnx
from dippm.graph import OpKind

NUMBERS = {
    "zero": np.int64(0), "one": np.int64(1), "two": np.array([2], np.int64), "ten": np.int64(10),
    "row": np.array([-1], np.int64), "first": np.array([0], np.int64), "last": np.array([1], np.int64),
    "five": np.int64(5),
}  # fmt: skip


def value(name: str, kind: int = TensorProto.INT64) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, kind, None)


def make_loop(
    *, reduction: str, extra: str, is_turn_first: bool, axis: str, step: str, most: str, turns: str
) -> onnx.NodeProto:
    """The loop of the exporter: slice the bounds, slice the rows between them, reduce these, insert the result."""
    rows = [h.make_node("Slice", ["rows", "start", "end"], ["own"])]
    if extra:
        rows.append(h.make_node(extra, ["own"], ["changed"]))
    reduced = ["changed" if extra else "own", axis]
    rows.append(h.make_node(reduction, reduced, ["bag"]))
    full = h.make_graph(rows, "full", [], [value("bag", TensorProto.FLOAT)])
    none = onnx.numpy_helper.from_array(np.zeros((1, 64), np.float32), "none")
    absent = h.make_graph([], "absent", [], [value("none", TensorProto.FLOAT)], [none])
    carried = ["turn", "bags"] if is_turn_first else ["bags", "turn"]
    body = h.make_graph(
        [
            h.make_node("Reshape", ["turn", "row"], ["place"]),
            h.make_node("Add", ["place", "one"], ["next"]),
            h.make_node("Add", ["place", "two"], ["after"]),
            h.make_node("Slice", ["offsets", "place", "next"], ["start"]),
            h.make_node("Slice", ["offsets", "next", "after"], ["end"]),
            h.make_node("Equal", ["start", "end"], ["is_empty"]),
            h.make_node("If", ["is_empty"], ["result"], then_branch=absent, else_branch=full),
            h.make_node("SequenceInsert", ["bags", "result"], ["bags_out"]),
            h.make_node("Add", ["turn", step], ["turn_out"]),
            h.make_node("Less", ["turn_out", "count"], ["goes_on"]),
        ],
        "body",
        [value("round"), value("is_on"), *(value(name) for name in carried)],
        [value("goes_on"), *(value(f"{name}_out") for name in carried)],
    )
    begin, end = (["zero", "empty"], [turns, "all"]) if is_turn_first else (["empty", "zero"], ["all", turns])
    return h.make_node("Loop", [most, "is_more", *begin], end, body=body)


def bags(
    *,
    reduction: str = "ReduceSum",
    extra: str = "",
    is_turn_first: bool = False,
    is_weighted: bool = True,
    new_axis: int = 0,
    outputs: tuple[str, ...] = ("y",),
    axis: str = "first",
    step: str = "one",
    most: str = "",
    turns: str = "turns",
) -> dict[str, Any]:
    """A model that looks ten rows up for each sample and reduces them."""
    nodes = [
        h.make_node("Shape", ["x"], ["sizes"], end=1),
        h.make_node("Squeeze", ["sizes"], ["count"]),
        h.make_node("Mul", ["count", "ten"], ["length"]),
        h.make_node("Range", ["zero", "length", "ten"], ["begins"]),
        h.make_node("Reshape", ["x", "row"], ["indices"]),
        h.make_node("Gather", ["table", "indices"], ["looked_up" if is_weighted else "rows"]),
        h.make_node("Shape", ["indices"], ["total"]),
        h.make_node("Concat", ["begins", "total"], ["offsets"], axis=0),
        h.make_node("SequenceEmpty", [], ["empty"]),
        h.make_node("Less", ["zero", "count"], ["is_more"]),
        make_loop(
            reduction=reduction, extra=extra, is_turn_first=is_turn_first, axis=axis, step=step, most=most, turns=turns
        ),
        h.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=new_axis),
    ]
    if is_weighted:
        weighing = [
            h.make_node("Expand", ["val_1", "total"], ["each"]),
            h.make_node("Unsqueeze", ["each", "row"], ["weights"]),
            h.make_node("Mul", ["looked_up", "weights"], ["rows"]),
        ]
        nodes[7:7] = weighing
    weights = {**NUMBERS, "table": np.zeros((100, 64), np.float32), "val_1": np.ones(1, np.float32)}
    types = {"x": TensorProto.INT64}
    return {
        "nodes": nodes, "weights": weights, "inputs": {"x": ["N", 10]}, "dtypes": types, "opset": 18,
        "outputs": outputs,
    }  # fmt: skip


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("is_turn_first", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_are_one_lookup(read, shape_of, reduction: str, is_turn_first: bool, is_weighted: bool) -> None:
    graph = read(**bags(reduction=reduction, is_turn_first=is_turn_first, is_weighted=is_weighted))
    assert [node.kind for node in graph.nodes if node.kind not in (OpKind.VIEW, OpKind.FILL)] == [OpKind.EMBEDDING]
    (node,) = (node for node in graph.nodes if node.kind is OpKind.EMBEDDING)
    assert [shape_of(graph, index) for index in node.inputs] == [["100", "64"], ["10N"], ["N+1"]]
    assert shape_of(graph, node.outputs[0]) == ["N", "64"]
    assert graph.fixed_batch is None
    assert graph.warnings == ()


def test_the_last_turn_may_be_left_out(read) -> None:
    graph = read(**bags(turns=""))
    assert [node.kind for node in graph.nodes if node.kind not in (OpKind.VIEW, OpKind.FILL)] == [OpKind.EMBEDDING]


@pytest.mark.parametrize(
    "options",
    [
        {"extra": "Exp"},  # it computes something
        {"new_axis": 1},
        {"outputs": ("y", "turns")},
    ],
)
def test_other_loops_are_counted_turn_by_turn(build, options: dict[str, Any]) -> None:
    graph = read_onnx(build(**bags(**options)), batch_hint=20)
    assert graph.fixed_batch == 20
    assert sum(node.kind is OpKind.REDUCE for node in graph.nodes) == 20
    assert any("counted step by step, 20 times" in warning for warning in graph.warnings)


@pytest.mark.parametrize("options", [{"axis": "last"}, {"step": "five"}, {"most": "five"}])
def test_loops_that_do_not_take_every_bag_or_reduce_otherwise_are_no_lookup(build, options: dict[str, Any]) -> None:
    graph = read_onnx(build(**bags(**options)), batch_hint=20)
    assert all(len(node.inputs) == 2 for node in graph.nodes if node.kind is OpKind.EMBEDDING)
    assert OpKind.REDUCE in {node.kind for node in graph.nodes}


def stacked_bags(
    *, reduction: str = "ReduceSum", extra: str = "", axis: str = "first", is_kept: int = 0, is_weighted: bool = False
) -> dict[str, Any]:
    """The same by the older exporter: each turn looks its own rows up, and the loop stacks their sums."""
    turn = [
        h.make_node("Gather", ["offsets", "turn"], ["start"]),
        h.make_node("Gather", ["ends", "turn"], ["end"]),
        h.make_node("Unsqueeze", ["start", "first"], ["starts"]),
        h.make_node("Unsqueeze", ["end", "first"], ["stops"]),
        h.make_node("Slice", ["indices", "starts", "stops", "first"], ["own"]),
        h.make_node("Gather", ["table", "own"], ["looked_up"]),
    ]
    reduced = "looked_up"
    if is_weighted:
        turn += [
            h.make_node("Slice", ["each", "starts", "stops", "first"], ["own_each"]),
            h.make_node("Unsqueeze", ["own_each", "last"], ["weights"]),
            h.make_node("Mul", ["looked_up", "weights"], ["weighted"]),
        ]
        reduced = "weighted"
    if extra:
        turn.append(h.make_node(extra, [reduced], ["changed"]))
        reduced = "changed"
    turn += [
        h.make_node(reduction, [reduced, axis], ["bag"], keepdims=is_kept),
        h.make_node("Cast", ["one"], ["goes_on"], to=TensorProto.BOOL),
    ]
    outputs = [value("goes_on", TensorProto.BOOL), value("bag", TensorProto.FLOAT)]
    body = h.make_graph(turn, "body", [value("turn"), value("is_on", TensorProto.BOOL)], outputs)
    nodes = [
        h.make_node("Shape", ["x"], ["sizes"], end=1),
        h.make_node("Squeeze", ["sizes"], ["count"]),
        h.make_node("Mul", ["count", "ten"], ["length"]),
        h.make_node("Range", ["zero", "length", "ten"], ["begins"]),
        h.make_node("Reshape", ["x", "row"], ["indices"]),
        h.make_node("Shape", ["indices"], ["total"]),
        h.make_node("Expand", ["val_1", "total"], ["each"]),
        h.make_node("Concat", ["begins", "total"], ["offsets"], axis=0),
        h.make_node("Slice", ["offsets", "last", "most", "first"], ["ends"]),
        h.make_node("Cast", ["one"], ["is_more"], to=TensorProto.BOOL),
        h.make_node("Loop", ["count", "is_more"], ["y"], body=body),
    ]
    weights = {
        **NUMBERS, "most": np.array([2**62], np.int64), "table": np.zeros((100, 64), np.float32),
        "val_1": np.ones(1, np.float32),
    }  # fmt: skip
    return {
        "nodes": nodes, "weights": weights, "inputs": {"x": ["N", 10]}, "dtypes": {"x": TensorProto.INT64}, "opset": 18,
        "outputs": ("y",),
    }  # fmt: skip


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_that_a_loop_stacks_are_one_lookup(read, shape_of, reduction: str, is_weighted: bool) -> None:
    graph = read(**stacked_bags(reduction=reduction, is_weighted=is_weighted))
    assert [node.kind for node in graph.nodes if node.kind not in (OpKind.VIEW, OpKind.FILL)] == [OpKind.EMBEDDING]
    (node,) = (node for node in graph.nodes if node.kind is OpKind.EMBEDDING)
    assert [shape_of(graph, index) for index in node.inputs] == [["100", "64"], ["10N"], ["N+1"]]
    assert shape_of(graph, node.outputs[0]) == ["N", "64"]
    assert graph.fixed_batch is None
    assert graph.warnings == ()


@pytest.mark.parametrize("options", [{"extra": "Exp"}, {"axis": "last"}, {"is_kept": 1}])
def test_other_loops_that_stack_are_counted_turn_by_turn(build, options: dict[str, Any]) -> None:
    graph = read_onnx(build(**stacked_bags(**options)), batch_hint=20)
    assert sum(node.kind is OpKind.REDUCE for node in graph.nodes) == 20
