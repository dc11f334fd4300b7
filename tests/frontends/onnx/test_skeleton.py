from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.skeleton import extract_skeleton


def varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def gemm_model(path: Path, *, columns: int, payload: int) -> None:
    """A linear layer whose weight's bytes are a hole in a sparse file."""
    head = varint(1 << 3) + varint(4) + varint(1 << 3) + varint(columns) + varint(2 << 3) + varint(1) + field(8, b"w")
    head += varint(9 << 3 | 2) + varint(payload)
    tensor = varint(5 << 3 | 2) + varint(len(head) + payload) + head
    node = field(1, b"x") + field(1, b"w") + field(2, b"y") + field(4, b"MatMul")
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4]).SerializeToString()
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None).SerializeToString()
    before = field(1, node) + field(11, value) + field(12, result)
    graph_size = len(before) + len(tensor) + payload
    opset = helper.make_opsetid("", 17).SerializeToString()
    start = varint(1 << 3) + varint(8) + field(8, opset) + varint(7 << 3 | 2) + varint(graph_size) + before + tensor
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + payload)


def test_drops_payloads_and_keeps_everything_else() -> None:
    big = numpy_helper.from_array(np.ones((64, 64), dtype=np.float32), "big")
    shape = numpy_helper.from_array(np.arange(1000), "shape")
    small = numpy_helper.from_array(np.ones(3, dtype=np.float32), "small")
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(4096, np.float32), "v"))
    node = helper.make_node("MatMul", ["x", "big"], ["y"])
    graph = helper.make_graph([constant, node], "g", [], [], [big, shape, small])
    model = helper.make_model(graph)

    data = model.SerializeToString()
    skeleton = onnx.ModelProto.FromString(extract_skeleton(memoryview(data)))

    assert len(skeleton.SerializeToString()) < len(data) - 4 * 64 * 64 - 4 * 4000
    assert list(skeleton.graph.initializer[0].dims) == [64, 64]
    assert not skeleton.graph.initializer[0].raw_data
    assert numpy_helper.to_array(skeleton.graph.initializer[1]).tolist() == list(range(1000))
    assert numpy_helper.to_array(skeleton.graph.initializer[2]).tolist() == [1, 1, 1]
    assert list(skeleton.graph.node[0].attribute[0].t.dims) == [4096]
    assert not skeleton.graph.node[0].attribute[0].t.raw_data
    assert skeleton.graph.node[1] == node


def test_payload_in_a_typed_field_is_dropped_too() -> None:
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2000], [1.0] * 2000)
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))

    skeleton = onnx.ModelProto.FromString(extract_skeleton(memoryview(model.SerializeToString())))

    assert not skeleton.graph.initializer[0].float_data
    assert list(skeleton.graph.initializer[0].dims) == [2000]


def test_subgraphs_and_functions_are_walked() -> None:
    weight = numpy_helper.from_array(np.ones(4096, np.float32), "w")
    body = helper.make_graph([], "body", [], [], [weight])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inner = helper.make_node("Constant", [], ["c"], value=weight)
    function = helper.make_function("f", "F", [], ["c"], [inner], [helper.make_opsetid("", 17)])
    model = helper.make_model(helper.make_graph([node], "g", [], []), functions=[function])

    skeleton = extract_skeleton(memoryview(model.SerializeToString()))

    assert len(skeleton) < 1000
    parsed = onnx.ModelProto.FromString(skeleton)
    assert list(parsed.functions[0].node[0].attribute[0].t.dims) == [4096]
    assert list(parsed.graph.node[0].attribute[1].g.initializer[0].dims) == [4096]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (field(7, b"x" * 2000)[:-1], "onnx.truncated"),
        (b"\xff" * 40, "onnx.damaged"),
        (b"\x00\x01", "onnx.damaged"),
        (b"\x0b", "onnx.damaged"),
        (b"\x09abc", "onnx.truncated"),
        (b"\x08\x80", "onnx.truncated"),
    ],
)
def test_hostile_bytes_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(ModelReadError) as caught:
        extract_skeleton(memoryview(data))
    assert caught.value.code == code


def test_nesting_is_limited() -> None:
    data = b"x" * 2000
    for _ in range(200):
        data = field(1, field(5, field(6, data)))  # node, attribute, graph
    with pytest.raises(ModelReadError) as caught:
        extract_skeleton(memoryview(field(7, data)))
    assert caught.value.code == "onnx.damaged"


def test_reads_a_file_beyond_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    columns = 150_000_000
    gemm_model(path, columns=columns, payload=4 * 4 * columns)
    assert path.stat().st_size > 2**31

    graph = read_onnx(path)

    assert graph.parameter_count == 4 * columns
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", str(columns)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_weights_are_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "vgg16_sized.onnx"
    gemm_model(path, columns=33_000_000, payload=4 * 4 * 33_000_000)
    code = (
        "import sys; from dippm.frontends.onnx import read_onnx; read_onnx(sys.argv[1]);"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) / 1024 < 150
