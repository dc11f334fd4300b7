from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.onnx import read_onnx


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


@pytest.mark.parametrize("rows", [[2**41], [2**39, 2**39]])
def test_an_input_out_of_range_in_the_file_is_refused(build, rows) -> None:
    with pytest.raises(ModelReadError, match=r"'x': a .* is out of range") as caught:
        read_onnx(build([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": ["N", *rows]}))
    assert caught.value.code == "onnx.shape"
    assert caught.value.cure


@pytest.mark.parametrize("declared", [["N", 3, "h", "w"], ["N", 3, 8, 8], [1, 3, 8, 8]])
def test_a_given_input_out_of_range_is_refused(build, declared) -> None:
    model = build([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": declared})
    with pytest.raises(UsageError, match=r"'x': a tensor .* is out of range"):
        read_onnx(model, input=parse_input_shapes((3, 2**39, 2**39)))


def test_operators_that_do_not_fit_are_named(read) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="stem")]
    with pytest.raises(ModelReadError, match=r"'stem' \(Conv\).*3 channels") as caught:
        read(nodes, weights={"w": zeros(4, 5, 1, 1)})
    assert caught.value.code == "onnx.shape"


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (helper.make_node("ConstantOfShape", ["s"], ["big"]), {"s": np.array([2**20, 2**18])}),
        (helper.make_node("Tile", ["one", "r"], ["big"]), {"one": zeros(1, 1), "r": np.array([2**30, 2**8])}),
        (helper.make_node("Expand", ["one", "s"], ["big"]), {"one": zeros(1), "s": np.array([2**19, 2**19])}),
        (
            helper.make_node("Range", ["a", "b", "c"], ["big"]),
            {"a": np.array(0), "b": np.array(2**39), "c": np.array(1)},
        ),
    ],
)
def test_sizes_that_grow_out_of_little_are_not_allocated(read, node, weights) -> None:
    graph = read([node, helper.make_node("Relu", ["big"], ["y"])], weights=weights)
    total = 1
    for dim in graph.tensors[graph.outputs[0]].shape:
        total *= dim.at(1)
    assert total >= 2**38


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("Reshape", "its target shape depends"),
        ("Expand", "its target shape depends"),
        ("Tile", "its repeats depend"),
        ("Pad", "its pads depend"),
        ("CenterCropPad", "its target shape depends"),
        ("Unsqueeze", "its axes depend"),
        ("ReduceSum", "its axes depend"),
    ],
)
def test_a_size_that_is_an_input_says_what_to_do(build, op, words) -> None:
    def said(**names: str) -> str:
        nodes = [helper.make_node(op, ["x", "s"], ["y"], **names)]
        model = build(nodes, inputs={"x": ["N", 4], "s": [2]}, dtypes={"s": TensorProto.INT64}, opset=18)
        with pytest.raises(ModelReadError) as caught:
            read_onnx(model)
        assert caught.value.code == "onnx.shape"
        assert "make what this one depends on a constant before the export" in str(caught.value.cure)
        return str(caught.value)

    unnamed = said()
    assert unnamed.startswith(f"The {op} node that makes 'y' cannot run on inputs of shape")
    assert f": {words} on values that are not known." in unnamed
    assert said(name="wide").startswith(f"Node 'wide' ({op}) cannot run on inputs of shape")


@pytest.mark.parametrize("sizes", [[2**62], [2**40, 2**40], [-5]])
def test_sizes_out_of_range_are_errors(read, sizes) -> None:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["y"])]
    with pytest.raises(ModelReadError):
        read(nodes, weights={"s": np.array(sizes)})
