"""Operators without a rule: their shape is stated, inferred or taken from their input, in this order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import dippm
from dippm.errors import ModelReadError
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.ops import registry
from dippm.graph import DType, OpKind


def _model(build, *, inputs: list, declared: list | None = None, dtype: int = TensorProto.FLOAT):
    nodes = [helper.make_node("Strange", ["x"], ["h"], domain="custom"), helper.make_node("Relu", ["h"], ["y"])]
    model = build(nodes, inputs={"x": inputs}, domains=["custom"])
    if declared is not None:
        model.graph.value_info.append(helper.make_tensor_value_info("h", dtype, declared))
    return read_onnx(model)


@pytest.mark.parametrize(
    ("inputs", "declared", "shape"),
    [
        (["N", 3, 8], ["N", 7], ["N", "7"]),
        ([1, 3, 8], [1, 7], ["N", "7"]),  # the file's batch is opened here too
        (["N", 3, 8], ["N", "anything", 4], ["N", "3", "4"]),
        (["N", 3, 8], None, ["N", "3", "8"]),
    ],
)
def test_what_the_file_says_of_the_result(build, shape_of, inputs: list, declared, shape: list[str]) -> None:
    graph = _model(build, inputs=inputs, declared=declared)
    assert graph.nodes[0].kind is OpKind.UNKNOWN
    assert shape_of(graph, graph.outputs[0]) == shape


def test_the_type_is_the_stated_one(build) -> None:
    graph = _model(build, inputs=["N", 3], declared=["N", 3], dtype=TensorProto.FLOAT16)
    assert graph.tensors[graph.nodes[0].outputs[0]].dtype is DType.FLOAT16


def test_onnx_itself_infers_standard_operators(one, shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {key: kept for key, kept in registry._RULES.items() if key != ("", "Gather")}
    monkeypatch.setattr(registry, "_RULES", rules)
    graph = one("Gather", "t i", inputs={"t": [5, 7], "i": ["N", 4]}, dtypes={"i": TensorProto.INT64}, axis=0)
    assert shapes(graph) == [["N", "4", "7"]]
    assert graph.unsupported_ops == {"Gather": 1}


def test_attributes_that_are_lists_are_inferred_from_too(one, shapes) -> None:
    ngrams = {"ngram_counts": [0], "ngram_indexes": [0, 1, 5], "pool_int64s": [1, 2, 3]}
    lengths = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    inputs, dtypes = {"x": ["N", 10]}, {"x": TensorProto.INT64}
    graph = one("TfIdfVectorizer", "x", inputs=inputs, dtypes=dtypes, mode="TF", **ngrams, **lengths)
    assert shapes(graph) == [["N", "6"]]
    assert graph.unsupported_ops == {"TfIdfVectorizer": 1}


def test_what_does_not_fit_behind_it_may_be_its_assumed_shape(read) -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["h"], domain="custom"),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    with pytest.raises(ModelReadError) as caught:
        read(nodes, inputs={"x": ["N", 8]}, weights={"w": np.zeros((5, 3), np.float32)}, domains=["custom"])
    assert "MatMul node that makes 'y' cannot run on inputs of shape [2, 8], [5, 3]" in str(caught.value)
    assert "(custom.Strange) is taken to be shaped as what they read" in (caught.value.cure or "")


def test_it_is_counted_by_its_name(read) -> None:
    nodes = [
        helper.make_node("Strange", ["x", "w"], ["h"], domain="custom"),
        helper.make_node("Strange", ["h"], ["y"], domain="custom"),
    ]
    graph = read(nodes, weights={"w": np.zeros(5, np.float32)}, domains=["custom"])
    assert graph.unsupported_ops == {"custom.Strange": 2}
    assert graph.warnings == ()
    (warning,) = [said for said in dippm.predict(graph).warnings if "Strange" in said]
    assert "custom.Strange (2)" in warning
    assert len(graph.nodes[0].inputs) == 2


def test_the_shape_is_never_that_of_a_weight_that_stands_first(build, shape_of) -> None:
    nodes = [helper.make_node("Strange", ["w", "x"], ["h"], domain="custom"), helper.make_node("Relu", ["h"], ["y"])]
    graph = read_onnx(build(nodes, weights={"w": np.zeros((3, 3, 8, 256), np.float32)}, domains=["custom"]))
    assert shape_of(graph, graph.outputs[0]) == ["N", "3", "8", "8"]


def test_unknown_operator_keeps_going(build, shape_of) -> None:
    nodes = [helper.make_node("Strange", ["x"], ["h"], domain="custom"), helper.make_node("Relu", ["h"], ["y"])]
    graph = read_onnx(build(nodes, domains=["custom"]))
    assert graph.unsupported_ops == {"custom.Strange": 1}
    assert shape_of(graph, graph.outputs[0]) == ["N", "3", "8", "8"]


def test_unknown_operator_takes_the_declared_shape(build, shape_of) -> None:
    model = build([helper.make_node("Strange", ["x"], ["h"], domain="c"), helper.make_node("Relu", ["h"], ["y"])])
    model.opset_import.add(domain="c", version=1)
    model.graph.value_info.append(helper.make_tensor_value_info("h", 1, ["N", 7]))
    graph = read_onnx(model)
    assert shape_of(graph, graph.outputs[0]) == ["N", "7"]
