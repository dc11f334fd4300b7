from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx import read_onnx


def external(name: str, dtype: int, shape: list[int], location: str, *, offset: int = 0) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=dtype, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def save(folder: Path, build, location: str) -> Path:
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs={"x": ["N", 16]})
    model.graph.initializer.append(external("w", onnx.TensorProto.FLOAT, [16, 32], location))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_beside_the_model_are_sized_and_not_read(tmp_path: Path, build) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\0" * 16 * 32 * 4)
    graph = read_onnx(save(tmp_path, build, "data/w.bin"))
    assert graph.parameter_count == 16 * 32
    assert graph.warnings == ()


def test_missing_file_is_a_warning(tmp_path: Path, build) -> None:
    graph = read_onnx(save(tmp_path, build, "w.bin"))
    assert graph.parameter_count == 16 * 32
    assert "w.bin" in graph.warnings[0]


@pytest.mark.parametrize(
    "location", ["../w.bin", "a/../../w.bin", "/etc/passwd", "C:\\w.bin", "..\\w.bin", "", "\\\\h\\w"]
)
def test_locations_outside_the_folder_are_refused(tmp_path: Path, build, location: str) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_onnx(save(tmp_path, build, location))
    assert caught.value.code == "onnx.external_path"


def test_link_out_of_the_folder_is_refused(tmp_path: Path, build) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 2048)
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelReadError) as caught:
        read_onnx(save(folder, build, "w.bin"))
    assert caught.value.code == "onnx.external_path"


def test_refused_in_a_model_without_a_folder_too(build) -> None:
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs={"x": ["N", 16]})
    model.graph.initializer.append(external("w", onnx.TensorProto.FLOAT, [16, 32], "../w.bin"))
    with pytest.raises(ModelReadError) as caught:
        read_onnx(model.SerializeToString())
    assert caught.value.code == "onnx.external_path"


def test_small_integers_that_shapes_depend_on_are_read(tmp_path: Path, build) -> None:
    (tmp_path / "s.bin").write_bytes(b"\xff" * 8 + np.array([-1, 48], dtype=np.int64).tobytes())
    model = build([helper.make_node("Reshape", ["x", "s"], ["y"])], inputs={"x": ["N", 3, 16]})
    model.graph.initializer.append(external("s", onnx.TensorProto.INT64, [2], "s.bin", offset=8))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = read_onnx(path)
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "48"]
