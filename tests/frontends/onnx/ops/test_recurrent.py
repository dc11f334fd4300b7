"""Recurrent layers in all their forms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.graph import OpKind

LENGTH, FEATURES, HIDDEN = 7, 5, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def weights(gates: int, directions: int, features: int = FEATURES, prefix: str = "") -> dict[str, np.ndarray]:
    rows = gates * HIDDEN
    shapes = {"w": (directions, rows, features), "r": (directions, rows, HIDDEN), "b": (directions, 2 * rows)}
    return {prefix + name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("has_states", [False, True])
def test_macs_and_shapes(build, op_type: str, direction: str, layout: int, has_states: bool) -> None:
    gates, directions = GATES[op_type], 2 if direction == "bidirectional" else 1
    state = [directions, "N", HIDDEN] if layout == 0 else ["N", directions, HIDDEN]
    inputs = {"x": [LENGTH, "N", FEATURES] if layout == 0 else ["N", LENGTH, FEATURES], "lengths": ["N"]}
    names = ["x", "w", "r", "b", "lengths"]
    if has_states:
        inputs |= {"h": state, "c": state} if op_type == "LSTM" else {"h": state}
        names += ["h", "c"] if op_type == "LSTM" else ["h"]
    node = helper.make_node(op_type, names, ["y", "last"], hidden_size=HIDDEN, direction=direction, layout=layout)
    dtypes = {"lengths": onnx.TensorProto.INT32}
    options = {"inputs": inputs, "weights": weights(gates, directions), "dtypes": dtypes, "outputs": ["y", "last"]}
    model = build([node], **options)
    graph = read_onnx(model)
    assert [each.kind.value for each in graph.nodes] == [op_type.lower()]
    macs = Workload.from_graph(graph).at([3]).macs.sum()
    assert macs == 3 * LENGTH * directions * gates * HIDDEN * (FEATURES + HIDDEN)
    sequence, last = ([str(dim) for dim in graph.tensors[index].shape] for index in graph.outputs)
    if layout == 0:
        assert sequence == [str(LENGTH), str(directions), "N", str(HIDDEN)]
    else:
        assert sequence == ["N", str(LENGTH), str(directions), str(HIDDEN)]
    assert last == [str(size) for size in state]
    assert graph.parameter_count == directions * gates * HIDDEN * (FEATURES + HIDDEN + 2)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    if layout == 0 and inferred.dim:
        assert [d.dim_value or "N" for d in inferred.dim] == [LENGTH, directions, "N", HIDDEN]


def two_layers(build, *, names: tuple[str, str], is_shared: bool = False) -> onnx.ModelProto:
    second = "" if is_shared else "second_"
    features = HIDDEN if is_shared else FEATURES
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["s1"], hidden_size=HIDDEN, name=f"{names[0]}/LSTM"),
        helper.make_node("Squeeze", ["s1", "one"], ["z"], name=f"{names[0]}/Squeeze"),
        helper.make_node(
            "LSTM", ["z", f"{second}w", f"{second}r", f"{second}b"], ["y"], hidden_size=HIDDEN, name=f"{names[1]}/LSTM"
        ),
    ]
    stored = weights(4, 1, features) | weights(4, 1, HIDDEN, "second_") | {"one": np.array([1])}
    return build(nodes, weights=stored, inputs={"x": [LENGTH, "N", features]})


def test_layers_of_one_module_are_one_operator(build) -> None:
    graph = read_onnx(two_layers(build, names=("/rnn", "/rnn")))
    layers = [node for node in graph.nodes if node.kind is OpKind.LSTM]
    assert [node.attributes["num_layers"] for node in layers] == [2]
    assert graph.parameter_count == 4 * HIDDEN * (FEATURES + 3 * HIDDEN + 4)
    assert Workload.from_graph(graph).macs.sum() > 0


@pytest.mark.parametrize("names", [("/first", "/second"), ("", "")])
def test_layers_of_different_modules_stay_apart(build, names: tuple[str, str]) -> None:
    graph = read_onnx(two_layers(build, names=names))
    assert sum(node.kind is OpKind.LSTM for node in graph.nodes) == 2


def test_one_layer_run_twice_stays_two_runs(build) -> None:
    graph = read_onnx(two_layers(build, names=("/rnn", "/rnn"), is_shared=True))
    assert sum(node.kind is OpKind.LSTM for node in graph.nodes) == 2
    assert graph.parameter_count == 4 * HIDDEN * (2 * HIDDEN + 2)


@pytest.mark.parametrize(
    ("first", "second", "layers"),
    [
        ({}, {}, [2]),
        ({"direction": "reverse"}, {"direction": "reverse"}, [2]),
        ({"direction": "reverse"}, {}, [1, 1]),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, {}, [1, 1]),
        ({"activations": ["sigmoid", "Tanh", "Tanh"]}, {}, [2]),
        ({"clip": 5.0}, {}, [1, 1]),
    ],
)
def test_only_layers_that_run_alike_are_one_operator(build, first: dict, second: dict, layers: list[int]) -> None:
    model = two_layers(build, names=("/rnn", "/rnn"))
    for node, attributes in ((model.graph.node[0], first), (model.graph.node[2], second)):
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    graph = read_onnx(model)
    assert [node.attributes["num_layers"] for node in graph.nodes if node.kind is OpKind.LSTM] == layers


def test_lstm_counts_its_own_weights(read) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=16, direction="bidirectional")
    weights = {
        "w": np.zeros((2, 64, 8), np.float32),
        "r": np.zeros((2, 64, 16), np.float32),
        "b": np.zeros((2, 128), np.float32),
    }
    graph = read([node], weights=weights, inputs={"x": [20, "batch", 8]})
    assert graph.nodes[0].attributes == {
        "hidden_size": 16, "num_layers": 1, "num_directions": 2, "batch_first": False,
    }  # fmt: skip
    assert graph.parameter_count == 2 * (64 * 8 + 64 * 16 + 128)
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["20", "2", "N", "16"]
