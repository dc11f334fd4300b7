from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.errors import UnsupportedError
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.idle_views import drop_idle_views


def reshaped(target: list[int | str]) -> tuple[list[onnx.NodeProto], dict[str, object]]:
    """A reshape to a target of numbers and of ``"N"`` and ``"2N"``, computed while the model runs."""
    parts = [{"N": "n", "2N": "n2"}.get(each, f"size{place}") for place, each in enumerate(target)]
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], end=1),
        helper.make_node("Mul", ["n", "two"], ["n2"]),
        helper.make_node("Concat", parts, ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    sizes = {f"size{place}": np.array([each]) for place, each in enumerate(target) if isinstance(each, int)}
    return nodes, {"two": np.array([2]), **sizes}


@pytest.mark.parametrize(
    ("shape", "target", "grown"),
    [
        (["N", 4, 8], [2, "2N", 8], ["2", "2N", "8"]),
        (["N", 4, 8], [2, -1, 8], ["2", "2N", "8"]),
        (["N", 2, 8], [2, "N", 8], ["2", "N", "8"]),
        (["N", 3, 8], [3, "N", 8], ["3", "N", "8"]),
        (["N", 64, 8], [64, "N", 8], ["64", "N", "8"]),
    ],
)
@pytest.mark.parametrize("hint", [None, 1, 2, 3, 5, 64])
def test_a_reshape_that_changes_nothing_at_one_batch_alone(build, kinds, shape_of, shape, target, grown, hint) -> None:
    nodes, weights = reshaped(target)
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": shape}), batch_hint=hint)
    assert graph.fixed_batch is None
    assert kinds(graph) == ["view", "relu"]
    assert shape_of(graph, graph.outputs[0]) == grown


@pytest.mark.parametrize("target", [["N", 4, 8], ["N", -1, 8], [-1, 4, 8], ["N", 2, 2, 8]])
def test_a_reshape_that_never_changes_anything_goes(build, kinds, target) -> None:
    nodes, weights = reshaped(target)
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", *([2, 2] if len(target) == 4 else [4]), 8]}))
    assert graph.fixed_batch is None
    assert kinds(graph) == ["relu"]
    assert drop_idle_views(graph) == graph


def test_at_a_batch_that_the_file_fixes_it_goes_too(build, kinds) -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["r"])]
    product = helper.make_node("MatMul", ["r", "r"], ["y"])
    graph = read_onnx(build([*nodes, product], inputs={"x": [4, 4]}))
    assert graph.fixed_batch == 4
    assert kinds(graph) == ["matmul"]


@pytest.mark.parametrize("end", [2, 3, 16])
def test_a_slice_that_takes_all_of_a_small_batch_is_refused(build, end) -> None:
    nodes = [helper.make_node("Slice", ["x", "zero", "end"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    model = build(nodes, weights={"zero": np.array([0]), "end": np.array([end])}, inputs={"x": ["N", 8]})
    with pytest.raises(UnsupportedError, match="does not grow in proportion to its batch"):
        read_onnx(model)
    assert read_onnx(model, batch_hint=1).fixed_batch == 1
