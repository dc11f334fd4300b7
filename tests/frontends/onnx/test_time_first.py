"""Files whose inputs begin with the time: the batch is behind it, as the layers tell."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.costs import Workload
from dippm.errors import UsageError

MARK = "The model takes time first"
LSTM_WEIGHTS = {"w": np.zeros((1, 256, 32), np.float32), "r": np.zeros((1, 256, 64), np.float32)}
# Four gates of 64 units over 32 features and 64 states.
STEP_MACS = 4 * 64 * (32 + 64)
MATRICES = {name: np.zeros((32, 32), np.float32) for name in ("wq", "wk", "wv")}


def lstm(inputs=("x", "w", "r")):
    return [helper.make_node("LSTM", list(inputs), ["y"], hidden_size=64)]


def attention():
    """One head over the first dimension, spelled as PyTorch's exporter does, the scale on both sides."""
    scale = numpy_helper.from_array(np.float32(32**-0.25))
    nodes = [helper.make_node("Constant", [], ["scale"], value=scale)]
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            helper.make_node("Unsqueeze", [f"{name}1", "front"], [f"{name}2"]),
            helper.make_node("Transpose", [f"{name}2"], [f"{name}3"], perm=perm),
        ]
    nodes += [helper.make_node("Mul", [f"{name}3", "scale"], [f"{name}4"]) for name in ("q", "k")]
    return [
        *nodes,
        helper.make_node("MatMul", ["q4", "k4"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v3"], ["y"]),
    ]


ATTENTION_WEIGHTS = {**MATRICES, "front": np.array([0])}


def sizes(graph, at=0):
    return [str(dim) for dim in graph.tensors[graph.inputs[at]].shape]


@pytest.mark.parametrize("batch", [1, 4])
def test_the_second_dimension_of_a_recurrent_layer_s_input_is_the_batch(read, batch) -> None:
    graph = read(lstm(), inputs={"x": [20, batch, 32]}, weights=LSTM_WEIGHTS)
    assert sizes(graph) == ["20", "N", "32"]
    assert Workload.from_graph(graph).at([8]).macs.sum() == 8 * 20 * STEP_MACS
    assert any(warning.startswith(MARK) for warning in graph.warnings)


def test_words_are_looked_up_before_it(read) -> None:
    nodes = [helper.make_node("Gather", ["table", "i"], ["x"]), *lstm()]
    weights = {**LSTM_WEIGHTS, "table": np.zeros((100, 32), np.float32)}
    graph = read(nodes, inputs={"i": [20, 1]}, dtypes={"i": TensorProto.INT64}, weights=weights)
    assert sizes(graph) == ["20", "N"]


def test_states_have_the_batch_where_it_stands_in_the_sequence(read) -> None:
    nodes = lstm(("x", "w", "r", "", "", "h", "c"))
    graph = read(nodes, inputs={"x": [20, 1, 32], "h": [1, 1, 64], "c": [1, 1, 64]}, weights=LSTM_WEIGHTS)
    assert [sizes(graph, at) for at in range(3)] == [["20", "N", "32"], ["1", "N", "64"], ["1", "N", "64"]]


@pytest.mark.parametrize("batch", [1, 4])
def test_attention_goes_over_the_time_and_not_over_samples(read, batch) -> None:
    graph = read(attention(), inputs={"x": [20, batch, 32]}, weights=ATTENTION_WEIGHTS)
    assert sizes(graph) == ["20", "N", "32"]
    assert Workload.from_graph(graph).at([8]).macs.sum() == 8 * (3 * 20 * 32 * 32 + 2 * 20 * 20 * 32)


def test_a_table_of_positions_holds_the_time_not_the_batch(read) -> None:
    nodes = [helper.make_node("Add", ["z", "table"], ["x"]), *attention()]
    weights = {**ATTENTION_WEIGHTS, "table": np.zeros((20, 1, 32), np.float32)}
    graph = read(nodes, inputs={"z": [20, 4, 32]}, weights=weights)
    assert sizes(graph) == ["20", "N", "32"]
    assert graph.fixed_batch is None


@pytest.mark.parametrize("front", ["batch", "n"])
def test_a_batch_that_the_file_names_is_one(read, front) -> None:
    graph = read(lstm(), inputs={"x": [front, 20, 32]}, weights=LSTM_WEIGHTS)
    assert sizes(graph) == ["N", "20", "32"]
    assert not any(warning.startswith(MARK) for warning in graph.warnings)


def test_layers_that_get_the_time_in_front_say_nothing(read) -> None:
    nodes = [helper.make_node("Transpose", ["i"], ["x"], perm=[1, 0, 2]), *lstm()]
    graph = read(nodes, inputs={"i": [4, 20, 32]}, weights=LSTM_WEIGHTS)
    assert sizes(graph) == ["N", "20", "32"]
    assert not any(warning.startswith(MARK) for warning in graph.warnings)


def test_steps_that_the_file_leaves_open_are_asked_for(read) -> None:
    with pytest.raises(UsageError, match="'steps' of input 'x'"):
        read(lstm(), inputs={"x": ["steps", 1, 32]}, weights=LSTM_WEIGHTS)
    graph = read(lstm(), inputs={"x": ["steps", 1, 32]}, weights=LSTM_WEIGHTS, given={"x": (20, 32)})
    assert sizes(graph) == ["20", "N", "32"]


def test_an_input_without_a_declared_shape(read, build) -> None:
    from dippm.frontends.inputs import parse_input_shapes
    from dippm.frontends.onnx import read_onnx

    model = build(lstm(), inputs={"x": [1, 1, 1]}, weights=LSTM_WEIGHTS)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    graph = read_onnx(model, input=parse_input_shapes({"x": (20, 32)}))
    assert sizes(graph) == ["20", "N", "32"]


def test_a_model_that_needs_its_batch_in_front_keeps_it_and_is_told(read) -> None:
    nodes = [helper.make_node("Conv", ["i", "f"], ["c"]), helper.make_node("Squeeze", ["c", "last"], ["x"]), *lstm()]
    weights = {**LSTM_WEIGHTS, "f": np.zeros((20, 3, 1, 1), np.float32), "last": np.array([3])}
    graph = read(nodes, inputs={"i": [4, 3, 32, 1]}, weights=weights)
    assert sizes(graph) == ["N", "3", "32", "1"]
    assert any("its number of steps" in warning for warning in graph.warnings)


def test_channels_are_no_batch_where_turning_leaves_the_layer_one_sample(read) -> None:
    nodes = [
        helper.make_node("Transpose", ["sound"], ["t"], perm=[3, 0, 1, 2]),
        helper.make_node("Reshape", ["t", "rows"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["mapped"]),
        helper.make_node("Reshape", ["mapped", "steps"], ["x"]),
        *lstm(),
    ]
    fixed = {"rows": np.array([20, 32]), "steps": np.array([20, 1, 32]), "matrix": np.zeros((32, 32), np.float32)}
    weights = {**LSTM_WEIGHTS, **fixed}
    graph = read(nodes, inputs={"sound": [1, 2, 16, 20]}, weights=weights)
    assert sizes(graph) == ["N", "2", "16", "20"]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 20 * (STEP_MACS + 32 * 32)
    assert any("is called the batch here" in warning for warning in graph.warnings)


def test_an_unbatched_sequence_is_left_alone(read) -> None:
    graph = read(lstm(), inputs={"x": [20, 1, 32]}, weights=LSTM_WEIGHTS, given="20,1,32:unbatched")
    assert sizes(graph) == ["20", "1", "32"]
    assert not any(warning.startswith(MARK) for warning in graph.warnings)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_second_sequence_of_another_length_has_its_batch_there_too(read, batch) -> None:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h", "c"], hidden_size=64),
        helper.make_node("LSTM", ["z", "w", "r", "", "", "h", "c"], ["y"], hidden_size=64),
    ]
    graph = read(nodes, inputs={"x": [20, batch, 32], "z": [15, batch, 32]}, weights=LSTM_WEIGHTS)
    assert [sizes(graph, at) for at in range(2)] == [["20", "N", "32"], ["15", "N", "32"]]
    assert Workload.from_graph(graph).at([8]).macs.sum() == 8 * 35 * STEP_MACS


def test_a_state_without_a_dimension_of_layers_begins_with_the_batch(read) -> None:
    nodes = [helper.make_node("Unsqueeze", ["s", "front"], ["h"]), *lstm(("x", "w", "r", "", "", "h", "h"))]
    weights = {**LSTM_WEIGHTS, "front": np.array([0])}
    graph = read(nodes, inputs={"x": [20, 4, 32], "s": [4, 64]}, weights=weights)
    assert [sizes(graph, at) for at in range(2)] == [["20", "N", "32"], ["N", "64"]]


def test_steps_are_not_asked_for_where_the_batch_stays_in_front(read) -> None:
    nodes = [helper.make_node("Conv", ["i", "f"], ["c"]), helper.make_node("Squeeze", ["c", "last"], ["x"]), *lstm()]
    weights = {**LSTM_WEIGHTS, "f": np.zeros((20, 3, 1, 1), np.float32), "last": np.array([3])}
    graph = read(nodes, inputs={"i": ["s0", 3, 32, 1]}, weights=weights)
    assert sizes(graph) == ["N", "3", "32", "1"]
    assert any("its number of steps" in warning for warning in graph.warnings)
