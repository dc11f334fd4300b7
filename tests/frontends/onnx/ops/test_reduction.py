from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.graph import DType, OpKind


def test_sizes_known_only_at_run_time_are_bounded(read) -> None:
    graph = read([helper.make_node("NonZero", ["x"], ["y"])], inputs={"x": ["N", 10]})
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["2", "10N"]
    assert "NonZero" in graph.warnings[0]


@pytest.mark.parametrize(
    ("attributes", "axes", "shape"),
    [
        ({"axes": [1, 3]}, (1, 3), ["N", "1", "8", "1"]),
        ({"axes": [-1], "keepdims": 0}, (3,), ["N", "3", "8"]),
        ({"axes": [2, -2]}, (2,), ["N", "3", "1", "8"]),
    ],
)
@pytest.mark.parametrize(("op_type", "function"), [("ReduceMean", "mean"), ("ReduceMax", "max"), ("ReduceL2", "norm")])
def test_one_number_for_each_slice(one, shapes, op_type, function: str, attributes, axes, shape: list[str]) -> None:
    graph = one(op_type, "x", **attributes)
    (node,) = graph.nodes
    assert (node.kind, node.attributes["function"], node.attributes["axes"]) == (OpKind.REDUCE, function, axes)
    assert shapes(graph) == [shape]


def test_no_axes_are_all_or_none(one, shapes) -> None:
    options = {"inputs": {"x": ["N", 3]}, "opset": 18}
    assert one("ReduceSum", "x", noop_with_empty_axes=1, **options).nodes == ()
    alone = one("ReduceProd", "x", inputs={"x": [4, 3]}, keepdims=0)
    assert shapes(alone) == [[]]


@pytest.mark.parametrize(
    ("opset", "attributes", "axes"), [(11, {"axis": 2}, (2, 3)), (11, {}, (1, 2, 3)), (13, {}, (3,))]
)
def test_the_axes_of_softmax_changed_with_opset_13(one, opset: int, attributes: dict, axes: tuple[int, ...]) -> None:
    for op_type, kind in (("Softmax", OpKind.SOFTMAX), ("LogSoftmax", OpKind.LOG_SOFTMAX)):
        (node,) = one(op_type, "x", opset=opset, **attributes).nodes
        assert (node.kind, node.attributes["axes"]) == (kind, axes)


def test_where_the_largest_stands(one, shapes) -> None:
    graph = one("ArgMax", "x", axis=1, keepdims=0)
    assert shapes(graph) == [["N", "8", "8"]]
    assert graph.tensors[graph.outputs[0]].dtype is DType.INT64


def test_the_largest_and_their_places(one, shapes, refused) -> None:
    graph = one("TopK", "x k", weights={"k": np.array([5])}, outputs=["y", "i"], axis=2)
    assert shapes(graph) == [["N", "3", "5", "8"]] * 2
    assert graph.tensors[graph.outputs[1]].dtype is DType.INT64
    assert "5 of 3" in refused("TopK", "x k", weights={"k": np.array([5])}, outputs=["y", "i"], axis=1)
    options = {"inputs": {"x": ["N", 8], "k": [1]}, "dtypes": {"k": TensorProto.INT64}, "outputs": ["y", "i"]}
    unknown = one("TopK", "x k", **options)
    assert shapes(unknown) == [["N", "8"]] * 2
    assert "TopK" in unknown.warnings[0]


@pytest.mark.parametrize(("count", "function"), [(5, "topk"), (8, "sort")])
def test_all_of_the_largest_are_a_sort(one, count: int, function: str) -> None:
    (node,) = one("TopK", "x k", weights={"k": np.array([count])}, outputs=["y", "i"], axis=2).nodes
    assert (node.kind, node.attributes["function"]) == (OpKind.SORT, function)


def test_running_sums_keep_the_shape(one, shapes) -> None:
    graph = one("CumSum", "x a", weights={"a": np.array(1)})
    assert (graph.nodes[0].kind, shapes(graph)) == (OpKind.CUMULATIVE, [["N", "3", "8", "8"]])


def test_a_loss_is_a_number_unless_it_is_of_each_sample(one, shapes, kinds) -> None:
    options = {"inputs": {"x": ["N", 10], "t": ["N"]}, "dtypes": {"t": TensorProto.INT64}}
    assert kinds(one("NegativeLogLikelihoodLoss", "x t", **options)) == ["reduce"]
    graph = one("SoftmaxCrossEntropyLoss", "x t", reduction="none", **options)
    assert kinds(graph) == ["log_softmax", "reduce"]
    assert shapes(graph) == [["N"]]


def test_a_determinant_has_the_arithmetic_of_its_decomposition(one) -> None:
    graph = one("Det", "x", inputs={"x": ["N", 12, 12]})
    (node,) = graph.nodes
    assert node.attributes["flops_per_element"] == pytest.approx(2 / 3 * 12)
    assert "Det is a lower bound" in graph.warnings[0]
