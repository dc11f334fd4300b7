"""Loops that may be one operator say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import dippm
from dippm.errors import ModelReadError
from dippm.graph import MOST_RUNS, TensorRole

make = helper.make_node


def value(name: str, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, None)


@pytest.mark.parametrize(
    ("steps", "is_learned", "is_said"), [(6, True, True), (6, False, False), (20, False, True), (1, True, False)]
)
@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_what_may_have_been_taken_apart_is_named(
    read: Any, op_type: str, steps: int, is_learned: bool, is_said: bool
) -> None:
    step = make("MatMul", ["h", "w"], ["p"]) if is_learned else make("Relu", ["h"], ["p"])
    weights: dict[str, Any] = {"w": np.ones((4, 4), dtype=np.float32)}
    if op_type == "Scan":
        nodes = [step, make("Add", ["p", "s"], ["n"])]
        body = helper.make_graph(nodes, "body", [value("h"), value("s")], [value("n")])
        node = make("Scan", ["h0", "x"], ["y"], num_scan_inputs=1, body=body)
    else:
        nodes = [step, make("Tanh", ["p"], ["n"]), make("Identity", ["go"], ["on"])]
        inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("h")]
        body = helper.make_graph(nodes, "body", inputs, [value("on", TensorProto.BOOL), value("n")])
        node = make("Loop", ["limit", "", "h0"], ["y"], body=body)
        weights["limit"] = np.array(steps)
    graph = read([node], inputs={"h0": ["N", 4], "x": [steps, "N", 4]}, weights=weights)
    assert any("step by step" in warning for warning in graph.warnings) == is_said


def branch(op_type: str) -> object:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op_type, ["x"], ["b"])], op_type, [], [value])


@pytest.mark.parametrize(("flag", "kind"), [(True, "relu"), (False, "tanh")])
def test_known_branch_is_taken(read, kinds, flag: bool, kind: str) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    graph = read([node], weights={"c": np.array(flag)})
    assert kinds(graph) == [kind]
    assert graph.warnings == ()


def test_unknown_branch_is_a_warning(read) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    graph = read([node], inputs={"x": ["N", 3], "c": []}, dtypes={"c": TensorProto.BOOL})
    assert len(graph.nodes) == 1
    assert "branch" in graph.warnings[0]


def loop_body() -> object:
    def value(name: str, dtype: int) -> object:
        return helper.make_tensor_value_info(name, dtype, None)

    nodes = [helper.make_node("Relu", ["v"], ["out"]), helper.make_node("Identity", ["go"], ["again"])]
    inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("v", TensorProto.FLOAT)]
    outputs = [value("again", TensorProto.BOOL), value("out", TensorProto.FLOAT)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def test_loop_of_known_length_is_unrolled(read, kinds) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], weights={"n": np.array(5)})
    assert kinds(graph) == ["relu"] * 5
    assert graph.warnings == ()


def test_loop_of_unknown_length_is_a_warning(read, kinds) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], inputs={"x": ["N", 3], "n": []}, dtypes={"n": TensorProto.INT64})
    assert kinds(graph) == ["relu"]
    assert "loop" in graph.warnings[0].lower()


def runs(graph: Any) -> list[Any]:
    return [node.attributes.get(MOST_RUNS) for node in graph.nodes]


def test_what_a_loop_of_unknown_length_runs_may_run_a_thousand_times(read, kinds) -> None:
    """What is put together of it, such as a product and its bias, too; what stands outside runs once."""
    body = loop_body()
    layer = [make("MatMul", ["v", "w"], ["p"]), make("Add", ["p", "b"], ["out"])]
    body = helper.make_graph([*layer, *list(body.node)[1:]], "body", body.input, body.output)
    graph = read(
        [make("Relu", ["x"], ["r"]), make("Loop", ["n", "", "r"], ["y"], body=body)],
        inputs={"x": ["N", 3], "n": []},
        dtypes={"n": TensorProto.INT64},
        weights={"w": np.ones((3, 3), np.float32), "b": np.ones(3, np.float32)},
    )
    assert kinds(graph) == ["relu", "linear"]
    assert runs(graph) == [None, 1000.0]


@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_what_is_cut_off_may_run_as_often_as_is_left(read, op_type: str) -> None:
    if op_type == "Loop":
        node = make("Loop", ["n", "", "x"], ["y"], body=loop_body())
        graph = read([node], weights={"n": np.array(3 * 4096)})
    else:
        nodes = [make("Add", ["h", "s"], ["n"])]
        body = helper.make_graph(nodes, "body", [value("h"), value("s")], [value("n")])
        node = make("Scan", ["h0", "x"], ["y"], num_scan_inputs=1, body=body)
        graph = read([node], inputs={"h0": ["N", 4], "x": [3 * 4096, "N", 4]})
    assert set(runs(graph)) == {3.0}


def test_loops_in_one_another_multiply(read) -> None:
    inner = make("Loop", ["n", "", "v"], ["out"], body=loop_body())
    outer = loop_body()
    body = helper.make_graph([inner, *list(outer.node)[1:]], "outer", outer.input, outer.output)
    node = make("Loop", ["n", "", "x"], ["y"], body=body)
    graph = read([node], inputs={"x": ["N", 3], "n": []}, dtypes={"n": TensorProto.INT64})
    assert runs(graph) == [1e6]


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_loop_that_its_own_counter_ends(read, kinds, rounds: int) -> None:
    """``while i < rounds``, as frameworks with a while of their own write it: no limit."""
    nodes = [
        make("Relu", ["v"], ["out"]),
        make("Add", ["count", "one"], ["next"]),
        make("Less", ["next", "end"], ["again"]),
    ]
    inputs = [
        value("i", TensorProto.INT64),
        value("go", TensorProto.BOOL),
        value("count", TensorProto.INT64),
        value("v"),
    ]
    body = helper.make_graph(
        nodes, "body", inputs, [value("again", TensorProto.BOOL), value("next", TensorProto.INT64), value("out")]
    )
    loop = make("Loop", ["", "yes", "zero", "x"], ["last", "y"], body=body)
    numbers = {"zero": 0, "one": 1, "end": rounds}
    weights = {"yes": np.array(True)} | {name: np.array(number) for name, number in numbers.items()}
    graph = read([loop], weights=weights, outputs=["y"])
    assert kinds(graph) == ["relu"] * rounds
    assert graph.warnings == ()


def test_a_loop_that_nothing_ends_is_cut_off(read, kinds) -> None:
    loop = make("Loop", ["", "yes", "x"], ["y"], body=loop_body())
    graph = read([loop], weights={"yes": np.array(True)})
    assert kinds(graph) == ["relu"] * 4096
    assert "counted 4096 times" in graph.warnings[0]


def test_the_side_with_more_work_is_counted_and_what_it_reads_is_kept(read, kinds) -> None:
    def side(*nodes: object) -> object:
        value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        return helper.make_graph(list(nodes), "side", [], [value])

    heavy = side(helper.make_node("MatMul", ["x", "w"], ["b"]))
    long = side(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Strange", ["r"], ["q"], domain="my"),
        helper.make_node("Neg", ["q"], ["b"]),
    )
    graphs = []
    for sides in ((heavy, long), (long, heavy)):
        node = helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])
        options = {
            "inputs": {"x": ["N", 64], "c": []},
            "weights": {"w": np.zeros((64, 64), np.float32)},
            "domains": ["my"],
        }
        graphs.append(read([node], dtypes={"c": TensorProto.BOOL}, **options))
    for graph in graphs:
        assert kinds(graph) == ["linear"]
        assert graph.unsupported_ops == {}
        assert "more work" in graph.warnings[0] or "more work" in graph.warnings[-1]


@pytest.mark.parametrize("is_inside", [True, False])
def test_the_weights_of_both_sides_are_loaded(read, kinds, is_inside: bool) -> None:
    """Whether the sides hold their weights themselves or the graph around them does, and one that both read once."""

    def stored(**sizes: tuple[int, int]) -> dict[str, Any]:
        return {name: np.zeros(size, np.float32) for name, size in sizes.items()}

    def side(name: str, weights: dict[str, Any]) -> object:
        nodes = [make("MatMul", ["x", name], [f"{name}t"]), make("MatMul", [f"{name}t", "both"], [f"{name}y"])]
        held = [numpy_helper.from_array(array, own) for own, array in weights.items()]
        return helper.make_graph(nodes, name, [], [value(f"{name}y")], held if is_inside else [])

    wide, narrow = stored(wide=(64, 32)), stored(narrow=(64, 32))
    node = make("If", ["c"], ["y"], then_branch=side("wide", wide), else_branch=side("narrow", narrow))
    around = stored(both=(32, 8)) | ({} if is_inside else wide | narrow)
    graph = read([node], inputs={"x": ["N", 64], "c": []}, dtypes={"c": TensorProto.BOOL}, weights=around)
    assert kinds(graph) == ["linear", "linear"]
    loaded = [tensor.name for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER]
    assert sorted(loaded) == ["both", "narrow", "wide"]
    assert graph.parameter_count == 2 * 64 * 32 + 32 * 8
    assert "the weights of both are in the memory" in graph.warnings[0]
    weights_mb = dippm.predict(graph, batch=4, device="A100").memory_parts_mb["weights"]
    assert weights_mb == pytest.approx(4 * graph.parameter_count / 2**20, abs=0.001)


def test_a_side_that_cannot_run_is_passed_over(read, kinds) -> None:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    squeeze = helper.make_graph([helper.make_node("Squeeze", ["x", "one"], ["b"])], "squeeze", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=squeeze, else_branch=branch("Tanh"))
    options = {"inputs": {"x": ["N", 3], "c": []}, "dtypes": {"c": TensorProto.BOOL}}
    graph = read([node], weights={"one": np.array([1])}, **options)
    assert kinds(graph) == ["tanh"]


def test_what_a_side_that_is_not_counted_makes_on_demand_outlives_it(read, kinds) -> None:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    adding = helper.make_graph([helper.make_node("Add", ["x", "sizes"], ["b"])], "adding", [], [value])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("If", ["c"], ["t"], then_branch=adding, else_branch=_products()),
        helper.make_node("Add", ["t", "sizes"], ["y"]),
    ]
    options = {"inputs": {"x": ["N", 2], "c": []}, "dtypes": {"c": TensorProto.BOOL}}
    graph = read(nodes, weights={"w": np.zeros((2, 2), np.float32)}, **options)
    assert kinds(graph) == ["fill", "linear", "add"]


def _products() -> object:
    value = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["p"])], "products", [], [value])


@pytest.mark.parametrize(("limit", "rounds", "said"), [(6, 6, "may end before"), (2**62, 1, "counted once")])
def test_a_loop_that_the_data_ends(read, kinds, limit: int, rounds: int, said: str) -> None:
    def value(name: str, dtype: int) -> object:
        return helper.make_tensor_value_info(name, dtype, None)

    nodes = [
        helper.make_node("Relu", ["v"], ["out"]),
        helper.make_node("ReduceMax", ["out"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["again"]),
    ]
    inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("v", TensorProto.FLOAT)]
    body = helper.make_graph(nodes, "body", inputs, [value("again", TensorProto.BOOL), value("out", TensorProto.FLOAT)])
    node = helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)
    graph = read([node], weights={"n": np.array(limit), "yes": np.array(True), "zero": np.float32(0)})
    assert kinds(graph).count("relu") == rounds
    assert said in graph.warnings[0]


def test_endless_loop_is_cut_off(read) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], weights={"n": np.array(2**40)})
    assert len(graph.nodes) <= 20_001
    assert "runs 1099511627776 times" in graph.warnings[0]


def test_scan_runs_once_for_each_slice(read, kinds) -> None:
    def value(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [value("s"), value("e")],
        [value("t"), value("o")],
    )
    node = helper.make_node("Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    graph = read([node], inputs={"x": ["N", 4, 5], "first": ["N", 5]}, outputs=["last", "y"])
    assert kinds(graph).count("add") == 4
    assert kinds(graph)[-1] == "concat"


@pytest.mark.parametrize(("axis", "shape"), [(0, ["4", "N", "5"]), (1, ["N", "4", "5"]), (-1, ["N", "5", "4"])])
def test_what_a_scan_collects_is_stacked_where_it_says(read, shape_of, axis: int, shape: list[str]) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("e", "o")]
    body = helper.make_graph([helper.make_node("Relu", ["e"], ["o"])], "body", ends[:1], ends[1:])
    attributes = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [1]}
    node = helper.make_node(
        "Scan", ["x"], ["y"], body=body, scan_output_axes=[axis], scan_output_directions=[1], **attributes
    )
    graph = read([node], inputs={"x": ["N", 4, 5]})
    assert shape_of(graph, graph.outputs[0]) == shape


def test_a_scan_says_an_axis_for_each_output(read) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("e", "o")]
    body = helper.make_graph([helper.make_node("Relu", ["e"], ["o"])], "body", ends[:1], ends[1:])
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_output_axes=[0, 1])
    with pytest.raises(ModelReadError, match="2 output axes"):
        read([node], inputs={"x": [4, 5]})


def test_what_makes_a_condition_alone_is_counted(read, kinds) -> None:
    decide = [
        make("MatMul", ["x", "w"], ["h"]),
        make("ReduceMean", ["h"], ["m"], keepdims=0),
        make("Greater", ["m", "z"], ["c"]),
    ]
    weights = {"w": np.zeros((64, 64), np.float32), "z": np.array(0.0, np.float32)}
    choose = make("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Relu"))
    graph = read([*decide, choose], inputs={"x": ["N", 64]}, weights=weights)
    assert kinds(graph) == ["linear", "reduce", "binary", "relu"]
    parameters = [tensor for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER]
    assert any(tuple(dim.at(1) for dim in tensor.shape) == (64, 64) for tensor in parameters)


def test_a_condition_within_a_side_that_is_not_taken_goes_with_it(read, kinds) -> None:
    inner = make("If", ["d"], ["b"], then_branch=branch("Relu"), else_branch=branch("Relu"))
    nested = helper.make_graph(
        [make("ReduceMean", ["x"], ["m"], keepdims=0), make("Greater", ["m", "z"], ["d"]), inner],
        "nested", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )  # fmt: skip
    heavy = helper.make_graph(
        [make("MatMul", ["x", "w"], ["k"])], "heavy", [], [helper.make_tensor_value_info("k", TensorProto.FLOAT, None)]
    )
    node = make("If", ["c"], ["y"], then_branch=nested, else_branch=heavy)
    graph = read(
        [node],
        inputs={"x": ["N", 64], "c": []},
        dtypes={"c": TensorProto.BOOL},
        weights={"w": np.zeros((64, 64), np.float32), "z": np.array(0.0, np.float32)},
    )
    assert kinds(graph) == ["linear"]
    assert len(graph.outputs) == 1


@pytest.mark.parametrize(
    ("decide", "asks"),
    [
        (make("Cast", ["m"], ["n"], to=TensorProto.INT64), ["n", "yes", "x"]),
        (make("Greater", ["m", "z"], ["c"]), ["one", "c", "x"]),
    ],
)
def test_what_decides_whether_a_loop_begins_is_counted(read, kinds, decide: Any, asks: list[str]) -> None:
    mean = [make("MatMul", ["x", "w"], ["h"]), make("ReduceMean", ["h"], ["m"], keepdims=0), decide]
    weights = {"w": np.zeros((64, 64), np.float32), "z": np.array(0.0, np.float32)}
    weights |= {"one": np.array(1), "yes": np.array(True)}
    loop = make("Loop", asks, ["y"], body=loop_body())
    graph = read([*mean, loop], inputs={"x": ["N", 64]}, weights=weights)
    assert kinds(graph)[:2] == ["linear", "reduce"]
    assert kinds(graph)[-1] == "relu"


def test_a_condition_that_each_round_makes_is_counted(read, kinds) -> None:
    body = helper.make_graph(
        [make("Relu", ["h"], ["r"]), make("ReduceMean", ["r"], ["m"], keepdims=0), make("Greater", ["m", "z"], ["on"])],
        "body",
        [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("h")],
        [value("on", TensorProto.BOOL), value("r")],
    )
    loop = make("Loop", ["rounds", "", "x"], ["y"], body=body)
    weights = {"rounds": np.array(3), "z": np.array(0.0, np.float32)}
    graph = read([loop], inputs={"x": ["N", 4]}, weights=weights)
    assert kinds(graph) == ["relu", "reduce", "binary"] * 3
