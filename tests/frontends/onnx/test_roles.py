"""Which stored tensors are trained: a layer of one unit has weights and a bias of one element."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from dippm.frontends.onnx import read_onnx
from dippm.graph import TensorRole

make = helper.make_node
ONE = np.zeros(1, dtype=np.float32)


def stored(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, dtype=np.float32)


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("order", [("p", "dense/bias:0"), ("dense/bias:0", "p")])
def test_a_layer_of_one_unit_keeps_its_bias(read: Any, bias: float, order: tuple[str, str]) -> None:
    nodes = [make("MatMul", ["x", "w"], ["p"]), make("Add", list(order), ["y"])]
    weights = {"w": stored(4, 1), "dense/bias:0": ONE + bias}
    graph = read(nodes, inputs={"x": ["N", 5, 4]}, weights=weights)
    assert graph.parameter_count == 5
    assert [(node.kind.value, len(node.inputs)) for node in graph.nodes] == [("linear", 3)]


def test_the_bias_is_found_behind_reshapes_and_a_turned_weight(read: Any) -> None:
    nodes = [
        make("Transpose", ["w"], ["t"]), make("MatMul", ["x", "t"], ["p"]), make("Reshape", ["p", "s"], ["r"]),
        make("Add", ["r", "bias/value"], ["y"]),
    ]  # fmt: skip
    weights = {"w": stored(1, 4), "bias/value": ONE, "s": np.array([-1, 1, 1])}
    assert read(nodes, inputs={"x": ["N", 4]}, weights=weights).parameter_count == 5


@pytest.mark.parametrize("number", ["scalar of the code", "vector behind many units", "added later"])
def test_a_number_of_the_code_is_no_bias(read: Any, number: str) -> None:
    units = 3 if number == "vector behind many units" else 1
    nodes = [make("MatMul", ["x", "w"], ["p"])]
    if number == "added later":
        nodes += [make("Relu", ["p"], ["q"]), make("Add", ["q", "c/y:0"], ["y"])]
    else:
        nodes.append(make("Add", ["p", "c/y:0"], ["y"]))
    value = np.array(0.5, dtype=np.float32) if number == "scalar of the code" else ONE
    graph = read(nodes, inputs={"x": ["N", 4]}, weights={"w": stored(4, units), "c/y:0": value})
    assert graph.parameter_count == 4 * units


@pytest.mark.parametrize(
    ("op", "shapes", "count"),
    [
        ("Conv", [(1, 3, 2, 2), (1,)], 13),
        ("Conv", [(1, 3, 1, 1), (1,)], 4),
        ("ConvTranspose", [(3, 1, 2, 2), (1,)], 13),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_one_filter_keeps_its_bias(read: Any, op: str, shapes: Any, count: int, is_apart: bool) -> None:
    bias = stored(1, 1, 1) if is_apart else stored(1)
    nodes = [make(op, ["x", "k:0"] + ([] if is_apart else ["b:0"]), ["p"])]
    nodes.append(make("Add", ["p", "b:0"], ["y"]) if is_apart else make("Relu", ["p"], ["y"]))
    assert read(nodes, weights={"k:0": stored(*shapes[0]), "b:0": bias}).parameter_count == count


@pytest.mark.parametrize(
    ("op", "count"), [("BatchNormalization", 2), ("InstanceNormalization", 2), ("LayerNormalization", 2), ("PRelu", 1)]
)
def test_one_channel_keeps_its_scale_and_shift(read: Any, op: str, count: int) -> None:
    names = ["unknown_1:0", "unknown_2:0", "unknown_3:0", "unknown_4:0"]
    names = names[: 4 if op == "BatchNormalization" else count]
    graph = read(
        [make(op, ["x", *names], ["y"])],
        inputs={"x": ["N", 1, 8, 1]},
        weights=dict.fromkeys(names, stored(1)),
    )
    assert graph.parameter_count == count


def group_norm(*, dims: tuple[int, ...], is_turned: bool = False) -> tuple[list[Any], dict[str, np.ndarray]]:
    """What exporters write for a group normalization of one channel."""
    nodes = [
        make("Constant", [], ["one"], value=numpy_helper.from_array(ONE + 1)),
        make("Constant", [], ["zero"], value=numpy_helper.from_array(ONE)),
        make("Shape", ["x"], ["s"]),
        make("Reshape", ["x", "groups"], ["g"]), make("InstanceNormalization", ["g", "one", "zero"], ["n"]),
        make("Reshape", ["n", "s"], ["r"]), make("Mul", ["val_1", "r"] if is_turned else ["r", "val_1"], ["m"]),
        make("Add", ["val_2", "m"] if is_turned else ["m", "val_2"], ["y"]),
    ]  # fmt: skip
    return nodes, {"groups": np.array([0, 1, -1]), "val_1": stored(*dims), "val_2": stored(*dims)}


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_group_normalization_of_one_channel_keeps_its_scale_and_shift(read: Any, is_turned: bool) -> None:
    nodes, weights = group_norm(dims=(1, 1, 1), is_turned=is_turned)
    graph = read(nodes, inputs={"x": ["N", 1, 8, 8]}, weights=weights)
    assert graph.parameter_count == 2
    assert [(node.kind.value, len(node.inputs)) for node in graph.nodes] == [("group_norm", 3)]


def test_numbers_of_the_code_behind_a_normalization_are_not_its_weights(read: Any) -> None:
    nodes, weights = group_norm(dims=())
    assert read(nodes, inputs={"x": ["N", 1, 8, 8]}, weights=weights).parameter_count == 0
    nodes, weights = group_norm(dims=(1, 1, 1))
    nodes[5:6] = [make("Reshape", ["n", "s"], ["q"]), make("Relu", ["q"], ["r"])]
    assert read(nodes, inputs={"x": ["N", 1, 8, 8]}, weights=weights).parameter_count == 0


@pytest.mark.parametrize("channels", [1, 4])
def test_weights_that_are_stored_once_with_the_statistics_stay_weights(read: Any, channels: int) -> None:
    nodes = [make("BatchNormalization", ["x", "scale", "shift", "shift", "scale"], ["y"])]
    weights = {"scale": stored(channels), "shift": stored(channels)}
    assert read(nodes, inputs={"x": ["N", channels, 8]}, weights=weights).parameter_count == 2 * channels
    nodes = [make("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["y"])]
    weights |= {"mean": stored(channels), "var": stored(channels)}
    assert read(nodes, inputs={"x": ["N", channels, 8]}, weights=weights).parameter_count == 2 * channels


def test_a_number_of_a_module_in_a_sequence_is_its_own(read: Any) -> None:
    graph = read([make("Mul", ["x", "0.gate"], ["y"])], weights={"0.gate": ONE + 1})
    assert graph.parameter_count == 1
    assert read([make("Mul", ["x", "17"], ["y"])], weights={"17": ONE + 1}).parameter_count == 0


def test_states_of_zeros_that_the_exporter_wrote_are_not_trained(read: Any) -> None:
    nodes = [make("LSTM", ["x", "w", "r", "", "", "val_15", "val_15"], ["", "y"], hidden_size=6)]
    weights = {"w": stored(1, 24, 4), "r": stored(1, 24, 6), "val_15": np.zeros((1, 2, 6), dtype=np.float32)}
    graph = read(nodes, inputs={"x": [5, 2, 4]}, weights=weights)
    assert graph.parameter_count == 24 * 10
    weights["val_15"] += 1
    assert read(nodes, inputs={"x": [5, 2, 4]}, weights=weights).parameter_count == 24 * 10 + 12


def test_one_quantised_filter_is_a_weight(read: Any) -> None:
    nodes = [make("DequantizeLinear", ["k", "s"], ["d"]), make("Conv", ["x", "d"], ["y"])]
    weights = {"k": np.ones((1, 1, 1, 1), dtype=np.int8), "s": np.array(0.1, dtype=np.float32)}
    graph = read(nodes, inputs={"x": ["N", 1, 8, 8]}, weights=weights)
    (kernel,) = (tensor for tensor in graph.tensors if tensor.name == "k")
    assert kernel.role is TensorRole.PARAMETER


@pytest.mark.slow
@pytest.mark.parametrize("is_dynamo", [False, True])
@pytest.mark.parametrize("is_trained", [False, True])
def test_exported_layers_of_one_unit_count_as_their_modules_do(is_dynamo: bool, is_trained: bool) -> None:
    import onnx

    torch = pytest.importorskip("torch")
    if is_dynamo:
        pytest.importorskip("onnxscript")
    nn = torch.nn
    modules: list[tuple[Any, tuple[int, ...]]] = [
        (nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)), (2, 5, 4)),
        (nn.Sequential(nn.Linear(4, 1)), (2, 4)),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.PReLU(), nn.ConvTranspose2d(1, 1, 2)), (2, 1, 8, 8)),
        (nn.Sequential(nn.Linear(4, 1), nn.LayerNorm(1)), (2, 4)),
        (nn.Sequential(nn.Conv2d(3, 1, 3), nn.GroupNorm(1, 1), nn.ReLU()), (2, 3, 8, 8)),
        (nn.Sequential(nn.BatchNorm2d(1), nn.ReLU()), (2, 1, 8, 8)),
    ]
    for module, shape in modules:
        for parameter in module.parameters() if is_trained else ():
            nn.init.uniform_(parameter, 0.1, 0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_dynamo:
                proto = torch.onnx.export(module.eval(), (torch.zeros(shape),), dynamo=True, verbose=False).model_proto
            else:
                file = io.BytesIO()
                torch.onnx.export(module.eval(), (torch.zeros(shape),), file, dynamo=False)
                proto = onnx.load_from_string(file.getvalue())
        assert read_onnx(proto).parameter_count == sum(parameter.numel() for parameter in module.parameters())
