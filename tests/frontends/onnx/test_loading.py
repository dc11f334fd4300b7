from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx import read_onnx


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"", "onnx.empty", "empty"),
        (zipped(), "onnx.not_onnx", "zip"),
        (pickle.dumps({"fc.weight": [1.0]}, protocol=2), "onnx.not_onnx", "pickle"),
        (b"<!DOCTYPE html><html>404</html>", "onnx.not_onnx", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "onnx.not_onnx", "LFS"),
        (b'{"model": 1}', "onnx.not_onnx", "JSON"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00" + b'{"w":{}}', "onnx.not_onnx", "safetensors"),
        (b"\x1c\x00\x00\x00TFL3", "onnx.not_onnx", "Lite"),
        (b"\x89HDF\r\n\x1a\n", "onnx.not_onnx", "HDF5"),
        (b"hello world, this is text", "onnx.damaged", "ONNX"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes, code: str, said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelReadError, match=said) as caught:
        read_onnx(path)
    assert caught.value.code == code


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_onnx(tmp_path / "absent.onnx")
    assert caught.value.code == "onnx.missing"


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_onnx(tmp_path)
    assert caught.value.code == "onnx.not_a_file"


def test_file_without_a_graph() -> None:
    with pytest.raises(ModelReadError) as caught:
        read_onnx(helper.make_opsetid("x", 1).SerializeToString())
    assert caught.value.code in {"onnx.not_onnx", "onnx.damaged"}


def test_every_truncation_is_an_error_and_no_traceback(build) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    data = build(nodes).SerializeToString()
    for size in range(0, len(data) - 12, 3):
        with pytest.raises(ModelReadError):
            read_onnx(data[:size])


def test_path_bytes_and_object_read_alike(build, tmp_path: Path) -> None:
    model = build([helper.make_node("Relu", ["x"], ["y"])])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graphs = [read_onnx(path), read_onnx(str(path)), read_onnx(model.SerializeToString()), read_onnx(model)]
    assert all(graph.tensors == graphs[0].tensors and graph.nodes == graphs[0].nodes for graph in graphs)
    assert graphs[0].source == str(path)


@pytest.mark.parametrize("name", [b"xx", b"/stem/Relu", b"batchsize", b"weight", b"middle", b"Relu"])
def test_names_that_are_no_text(name: bytes) -> None:
    nodes = [
        helper.make_node("Relu", ["xx"], ["middle"], name="/stem/Relu"),
        helper.make_node("Add", ["middle", "weight"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("xx", TensorProto.FLOAT, ["batchsize", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [helper.make_tensor("weight", TensorProto.FLOAT, [4], [0.0] * 4)]
    data = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, stored)).SerializeToString()
    try:
        graph = read_onnx(data.replace(name, b"\xff" * len(name)))
    except ModelReadError as error:
        assert error.code in {"onnx.damaged", "onnx.invalid"}
    else:
        assert all(isinstance(tensor.name, str) for tensor in graph.tensors)
        assert all(isinstance(node.source_op, str) for node in graph.nodes)
