from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx.decoding import Decoder
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.graph import DType


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/layer2/layer2.0/downsample/downsample.1/BatchNormalization", "layer2.0.downsample.1"),
        ("/conv1/Conv", "conv1"),
        ("Conv_12", ""),
    ],
)
def test_module_path_comes_from_the_older_exporters_names(read, name: str, scope: str) -> None:
    graph = read([helper.make_node("Relu", ["x"], ["y"], name=name)])
    assert graph.nodes[0].scope == scope


def test_module_path_comes_from_the_newer_exporters_metadata(read) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="node_relu")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layer1', 'layer1.0', 'relu']")
    assert read([node]).nodes[0].scope == "layer1.0"


@pytest.mark.parametrize(
    "text", ["not a list", "[", "('a',)", "[1, 2]", "[]", "['only the operator']", "[" * 5000, "x" * 20_000]
)
def test_metadata_that_is_no_list_of_paths_is_no_scope(read, text: str) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="/layer/Relu")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    assert read([node]).nodes[0].scope == ""


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.FLOAT, [0.5, -2.0]),
        (TensorProto.DOUBLE, [0.5, -2.0]),
        (TensorProto.INT64, [2**40, -1]),
        (TensorProto.INT32, [7, -1]),
        (TensorProto.UINT8, [0, 255]),
        (TensorProto.UINT64, [2**63, 1]),
        (TensorProto.BOOL, [True, False]),
    ],
)
def test_values_are_the_same_in_either_form(kind: int, values: list, raw: bool) -> None:
    array = np.array(values, dtype=helper.tensor_dtype_to_np_dtype(kind))
    proto = helper.make_tensor("w", kind, [1, 2], array.tobytes() if raw else values, raw=raw)
    weight = Decoder(ExternalFiles(None)).tensor(proto)
    assert (weight.name, weight.shape) == ("w", (1, 2))
    assert weight.data is not None
    assert weight.data.dtype == array.dtype
    assert weight.data.tolist() == [array.tolist()]


def test_values_that_do_not_fill_the_shape_are_not_known() -> None:
    decoder = Decoder(ExternalFiles(None))
    proto = helper.make_tensor("w", TensorProto.INT64, [3], np.arange(3).tobytes(), raw=True)
    proto.dims[0] = 4
    assert decoder.tensor(proto).data is None
    proto = helper.make_tensor("w", TensorProto.INT64, [3], [1, 2, 3])
    proto.dims[0] = 2
    assert decoder.tensor(proto).data is None


@pytest.mark.parametrize("dims", [[-1, 3], [1] * 33])
def test_an_impossible_shape_is_an_error(dims: list[int]) -> None:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    with pytest.raises(ModelReadError, match="'w'") as caught:
        Decoder(ExternalFiles(None)).tensor(proto)
    assert caught.value.code == "onnx.invalid"


@pytest.mark.parametrize(
    "value", [3, 0.5, "text", [1, 2], [0.5, 1.5], ["a", "b"]], ids=lambda value: type(value).__name__
)
def test_attributes_of_every_kind(value: object) -> None:
    assert Decoder(ExternalFiles(None)).attribute(helper.make_attribute("name", value)) == value


def test_a_sparse_tensor_is_known_by_its_dense_shape() -> None:
    values = helper.make_tensor("v", TensorProto.FLOAT16, [2], np.zeros(2, np.float16).tobytes(), raw=True)
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [1, 5])
    weight = Decoder(ExternalFiles(None)).sparse_tensor(helper.make_sparse_tensor(values, indices, [3, 4]))
    assert (weight.name, weight.shape, weight.dtype, weight.data) == ("v", (3, 4), DType.FLOAT16, None)
