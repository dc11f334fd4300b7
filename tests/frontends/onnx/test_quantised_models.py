"""Models that onnxruntime's own tools quantise or convert to half precision, read from their real files."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import dippm
from dippm.costs.polynomial import numel
from dippm.costs.precision import Precision
from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.graph import DType, Graph, GraphArrays, OpKind, TensorRole

quantization = pytest.importorskip("onnxruntime.quantization")

SIZES = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return SIZES.normal(size=shape).astype(np.float32)


def value(name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path: Path, nodes: list, inputs: list, outputs: list, weights: dict[str, np.ndarray]) -> Path:
    stored = [numpy_helper.from_array(data, name) for name, data in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def save_network(folder: Path) -> Path:
    """A residual block with pooling and a classifier."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    weights = {
        "w1": weight(32, 3, 3, 3), "b1": weight(32), "w2": weight(32, 32, 3, 3), "b2": weight(32),
        "w3": weight(10, 32), "b3": weight(10),
    }  # fmt: skip
    return save(folder / "n.onnx", nodes, [value("x", ["N", 3, 32, 32])], [value("y", ["N", 10])], weights)


def save_encoder(folder: Path) -> Path:
    """A table of words and two linear layers."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "b1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    weights = {"words": weight(100, 64), "w1": weight(64, 128), "b1": weight(128), "w2": weight(128, 64)}
    inputs = [value("ids", ["N", 16], TensorProto.INT64)]
    return save(folder / "e.onnx", nodes, inputs, [value("y", ["N", 16, 64])], weights)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save_network(tmp_path)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return save_encoder(tmp_path)


class Calibration(quantization.CalibrationDataReader):
    """One sample."""

    def __init__(self, feed: dict[str, np.ndarray]) -> None:
        self._feeds = iter([feed])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quietly(function, *arguments, **options) -> None:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments, **options)
    finally:
        root.setLevel(level)


def quantise(path: Path, *, dynamic: bool = False, **options) -> Path:
    result = path.with_name(f"{path.stem}_q.onnx")
    if dynamic:
        quietly(quantization.quantize_dynamic, path, result, **options)
    else:
        is_image = path.stem == "n"
        feed = {"x": weight(1, 3, 32, 32)} if is_image else {"ids": np.zeros((1, 16), np.int64)}
        quietly(quantization.quantize_static, path, result, Calibration(feed), **options)
    return result


def macs(graph: Graph) -> int:
    return int(Workload.from_graph(graph).at([4]).macs.sum())


def weight_bytes(graph: Graph) -> float:
    roles = (TensorRole.PARAMETER, TensorRole.BUFFER)
    return sum(
        np.prod([dim.fixed for dim in tensor.shape]) * tensor.dtype.bits / 8
        for tensor in graph.tensors
        if tensor.role in roles
    )


FORMATS = [
    {"quant_format": quantization.QuantFormat.QDQ},
    {"quant_format": quantization.QuantFormat.QDQ, "per_channel": True},
    {"quant_format": quantization.QuantFormat.QOperator, "activation_type": quantization.QuantType.QUInt8},
    {"dynamic": True},
    {"dynamic": True, "per_channel": True},
]


@pytest.mark.parametrize("options", FORMATS, ids=["qdq", "qdq-channels", "operators", "dynamic", "dynamic-channels"])
@pytest.mark.parametrize("name", ["network", "encoder"])
def test_quantised_model_is_the_same_network_with_small_weights(request, name: str, options: dict) -> None:
    path = request.getfixturevalue(name)
    original = read_onnx(path)
    graph = read_onnx(quantise(path, **options))
    assert graph.unsupported_ops == {}
    assert graph.fixed_batch is None
    assert macs(graph) == macs(original) > 0
    assert graph.parameter_count == original.parameter_count
    assert weight_bytes(graph) < 0.5 * weight_bytes(original)
    assert "quantised" in graph.warnings[0]
    matrices = [node for node in graph.nodes if node.kind in (OpKind.CONV, OpKind.LINEAR)]
    read = {graph.tensors[index].dtype for node in matrices for index in node.inputs[:2]}
    assert read == {DType.FLOAT32}


def test_each_weight_becomes_numbers_right_before_its_layer(network: Path) -> None:
    graph = read_onnx(quantise(network))
    producers = graph.producers()
    for position, node in enumerate(graph.nodes):
        if node.kind is OpKind.CONV:
            assert position - 3 <= producers[node.inputs[1]] < position
    floats = dippm.predict(read_onnx(network), batch=8, device="A100")
    integers = dippm.predict(graph, batch=8, device="A100")
    assert integers.macs == floats.macs
    assert floats.latency_ms < integers.latency_ms < 4 * floats.latency_ms


@pytest.mark.parametrize(("bits", "dtype"), [(2, DType.UINT2), (4, DType.UINT4), (8, DType.UINT8)])
@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
def test_weights_of_few_bits(encoder: Path, bits: int, dtype: DType, quant_format: str) -> None:
    matmul = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    if quant_format == "QDQ" and bits != 4:
        pytest.skip("the tool writes pairs of conversions for four bits only")
    options = {"quant_format": getattr(quantization.QuantFormat, quant_format), "bits": bits}
    quantizer = matmul.MatMulNBitsQuantizer(onnx.load(encoder), block_size=32, is_symmetric=False, **options)
    quietly(quantizer.process)
    graph = read_onnx(quantizer.model.model)
    original = read_onnx(encoder)
    assert graph.unsupported_ops == {}
    assert graph.parameter_count == original.parameter_count
    assert macs(graph) == macs(original)
    stored = [graph.tensors[node.inputs[0]] for node in graph.nodes if node.kind is OpKind.DEQUANTIZE]
    assert [tensor.dtype for tensor in stored] == [dtype, dtype]
    assert sum(np.prod([dim.fixed for dim in tensor.shape]) for tensor in stored) == 2 * 64 * 128


@pytest.mark.parametrize("name", ["network", "encoder"])
def test_half_precision_halves_the_weights_and_says_so(request, name: str) -> None:
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    path = request.getfixturevalue(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = float16.convert_float_to_float16(onnx.load(path), keep_io_types=True)
    graph, original = read_onnx(half), read_onnx(path)
    assert graph.parameter_count == original.parameter_count
    assert weight_bytes(graph) == weight_bytes(original) / 2
    plain, kept = (dippm.predict(model, batch=8, device="A100") for model in (original, graph))
    assert kept.memory_parts_mb["weights"] == pytest.approx(plain.memory_parts_mb["weights"] / 2, rel=0.01, abs=0.01)
    assert [each.conditions.precision for each in (plain, kept)] == [Precision.FP32, Precision.FP16]
    said = "The model runs in float16, the type that its weights are stored in."
    named = dippm.predict(graph, device="A100", precision="fp16")
    assert [said in each.warnings for each in (plain, kept, named)] == [False, True, False]


@pytest.mark.parametrize(("number", "dtype"), [(10, DType.FLOAT16), (16, DType.BFLOAT16)])
def test_a_model_in_half_precision_costs_what_the_whole_model_in_it_does(number: int, dtype: DType) -> None:
    def model(element: int) -> onnx.ModelProto:
        stored = [helper.make_tensor("w", element, [256, 256], bytes(256 * 256 * (4 if element == 1 else 2)), raw=True)]
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = helper.make_graph(
            [node], "g", [value("x", ["N", 256], element)], [value("y", ["N", 256], element)], stored
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    half, single = read_onnx(model(number)), read_onnx(model(1))
    assert {tensor.dtype for tensor in half.tensors} == {dtype}
    precision = "fp16" if dtype is DType.FLOAT16 else "bf16"
    in_file = dippm.predict(half, batch=64, device="A100", precision="fp32")
    asked_for = dippm.predict(single, batch=64, device="A100", precision=precision)
    assert in_file.memory_mb == asked_for.memory_mb
    # The plain sum answers the file, the networks may answer what was asked for.
    assert in_file.latency_ms == pytest.approx(asked_for.latency_ms, rel=0.15)


def test_integers_cannot_be_trained(network: Path) -> None:
    with pytest.raises(dippm.UnsupportedError, match="stored as integers") as caught:
        dippm.predict(quantise(network), mode="training", optimizer="sgd")
    assert caught.value.code == "training.quantised"
    assert caught.value.cure


def test_lstm_quantised_dynamically(tmp_path: Path) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["s", "h"], hidden_size=32, direction="bidirectional")
    weights = {"w": weight(2, 128, 16), "r": weight(2, 128, 32), "b": weight(2, 256)}
    path = save(tmp_path / "l.onnx", [node], [value("x", [20, "N", 16])], [value("s", [20, 2, "N", 32])], weights)
    original, graph = read_onnx(path), read_onnx(quantise(path, dynamic=True))
    assert Counter(node.kind for node in graph.nodes)[OpKind.LSTM] == 1
    assert graph.unsupported_ops == {}
    assert graph.parameter_count == original.parameter_count
    assert macs(graph) == macs(original) == 4 * 20 * 2 * 4 * 32 * (16 + 32)


class Originals(tuple[bytes, ...]):
    """Files, too long to be printed."""

    def __repr__(self) -> str:
        return f"{len(self)} files"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    """The files of every way of quantising, and half precision."""
    found: list[bytes] = []
    for number, options in enumerate(FORMATS):
        folder = tmp_path_factory.mktemp(f"original{number}")
        found += [quantise(make(folder), **options).read_bytes() for make in (save_network, save_encoder)]
    folder = tmp_path_factory.mktemp("packed")
    matmul = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = matmul.MatMulNBitsQuantizer(onnx.load(save_encoder(folder)), block_size=32, is_symmetric=False)
    quietly(quantizer.process)
    found.append(quantizer.model.model.SerializeToString())
    return Originals(found)


def read_or_refuse(source: bytes | onnx.ModelProto) -> None:
    try:
        graph = read_onnx(source)
        elements = numel(GraphArrays.from_graph(graph))
    except dippm.DippmError as error:
        assert error.code
    else:
        assert len(elements) == len(graph.tensors)


SETTINGS = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(st.integers(0, 100), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1))
def test_changed_bytes(originals: Originals, which: int, changes: list[tuple[float, int]]) -> None:
    data = bytearray(originals[which % len(originals)])
    for place, byte in changes[:8]:
        data[int(place * len(data))] = byte
    read_or_refuse(bytes(data))


HOSTILE = st.sampled_from([0, 1, 2, 3, -1, 7, 2**31, 2**40, 2**62, -(2**62)])


@SETTINGS
@given(
    st.integers(0, 100), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 999), HOSTILE), min_size=1, max_size=4)
)
def test_changed_structure(originals: Originals, which: int, changes: list[tuple[int, int, int]]) -> None:
    model = onnx.ModelProto.FromString(originals[which % len(originals)])
    graph = model.graph
    for kind, place, hostile in changes:
        node = graph.node[place % len(graph.node)]
        stored = graph.initializer[place % len(graph.initializer)]
        if kind == 0 and node.input:
            node.input[place % len(node.input)] = ""
        elif kind == 1 and node.input:
            node.input[place % len(node.input)] = stored.name
        elif kind == 2:
            stored.data_type = hostile % 29
        elif kind == 3 and stored.dims:
            stored.dims[place % len(stored.dims)] = hostile
        elif kind == 4 and node.attribute and node.attribute[0].HasField("i"):
            node.attribute[0].i = hostile
        elif kind == 5:
            del node.input[-1:]
    read_or_refuse(model)
    read_or_refuse(model.SerializeToString())
