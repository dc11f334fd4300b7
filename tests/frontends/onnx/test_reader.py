from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper, numpy_helper

from dippm.costs import Workload
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.onnx import read_onnx
from dippm.graph import OpKind, TensorRole


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def classifier() -> tuple[list, dict]:
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    weights = {
        "conv.weight": zeros(8, 3, 3, 3), "conv.bias": zeros(8), "fc.weight": zeros(10, 32), "fc.bias": zeros(10),
    }  # fmt: skip
    return nodes, weights


def test_a_classifier(read, kinds, shape_of) -> None:
    nodes, weights = classifier()
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["conv", "relu", "max_pool", "view", "linear", "softmax"]
    assert graph.framework == "onnx"
    assert graph.parameter_count == 8 * 27 + 8 + 320 + 10
    assert shape_of(graph, graph.inputs[0]) == ["N", "3", "8", "8"]
    assert shape_of(graph, graph.outputs[0]) == ["N", "10"]
    conv = graph.nodes[0]
    assert conv.attributes == {
        "groups": 1, "kernel": (3, 3), "stride": (2, 2), "dilation": (1, 1), "padding": (1, 1),
    }  # fmt: skip
    assert shape_of(graph, conv.outputs[0]) == ["N", "8", "4", "4"]
    flat = graph.nodes[3].outputs[0]
    assert graph.tensors[flat].alias_of == graph.nodes[3].inputs[0]


def test_shape_arithmetic_is_worked_out(read, kinds, shape_of) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Mul", ["n", "two"], ["n2"]),
        helper.make_node("Unsqueeze", ["n2", "axes"], ["n3"]),
        helper.make_node("Concat", ["n3", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"zero": np.array(0), "two": np.array(2), "axes": np.array([0]), "rest": np.array([-1, 4])}
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["view"]
    assert shape_of(graph, graph.outputs[0]) == ["2N", "24", "4"]


def test_fixed_batch_is_opened(read, shape_of) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        helper.make_node("Reshape", ["c", "tokens"], ["t"]),
        helper.make_node("Transpose", ["t"], ["s"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["cls", "s"], ["k"], axis=1),
        helper.make_node("Add", ["k", "pos"], ["p"]),
        helper.make_node("Reshape", ["p", "heads"], ["h"]),
        helper.make_node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["q", "merged"], ["y"]),
    ]
    weights = {
        "w": zeros(16, 3, 4, 4), "tokens": np.array([1, 16, 4]), "cls": zeros(1, 1, 16), "pos": zeros(1, 5, 16),
        "heads": np.array([1, 5, 4, 4]), "merged": np.array([4, 5, 4]),
    }  # fmt: skip
    graph = read(nodes, weights=weights, inputs={"x": [1, 3, 8, 8]})
    assert graph.fixed_batch is None
    assert shape_of(graph, graph.outputs[0]) == ["4N", "5", "4"]


def test_ambiguous_reshape_is_tried_again(read, shape_of) -> None:
    # [5, 1, 8] joined to [5, 8] and taken apart again: the first reading of [5, 8] breaks the matrix product.
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["t", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        helper.make_node("Add", ["b", "x"], ["y"]),
    ]
    weights = {"flat": np.array([5, 8]), "w": zeros(8, 8), "apart": np.array([5, 1, 8])}
    graph = read(nodes, weights=weights, inputs={"x": [1, 5, 8]})
    assert graph.fixed_batch is None
    assert shape_of(graph, graph.outputs[0]) == ["N", "5", "8"]


def test_baked_minus_one_does_not_swallow_the_batch(read, shape_of) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    graph = read(nodes, weights={"s": np.array([1, -1, 8])}, inputs={"x": [1, 3, 8, 8]})
    assert shape_of(graph, graph.outputs[0]) == ["N", "24", "8"]


def gated(state: list[helper.NodeProto]) -> list[helper.NodeProto]:
    """A step of a recurrent cell: what it makes of its first state is added to what it makes of the input."""
    return [
        *state,
        helper.make_node("MatMul", ["state", "w"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]


@pytest.mark.parametrize(
    ("state", "weights"),
    [
        ([], {"state": zeros(2, 8)}),
        ([helper.make_node("Expand", ["zero", "size"], ["state"])], {"zero": zeros(), "size": np.array([2, 8])}),
        ([helper.make_node("ConstantOfShape", ["size"], ["state"])], {"size": np.array([2, 8])}),
        ([helper.make_node("Tile", ["row", "size"], ["state"])], {"row": zeros(1, 8), "size": np.array([2, 1])}),
    ],
    ids=["stored", "expanded", "filled", "repeated"],
)
def test_a_state_written_for_the_files_batch_is_opened(read, shape_of, state, weights) -> None:
    graph = read(gated(state), weights={**weights, "w": zeros(8, 8)}, inputs={"x": [2, 8]})
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    products = [node for node in graph.nodes if node.kind is OpKind.LINEAR]
    assert [shape_of(graph, node.outputs[0]) for node in products] == [["N", "8"], ["N", "8"]]


def test_a_stored_table_is_no_state(read, shape_of) -> None:
    table = np.arange(16, dtype=np.float32).reshape(2, 8)
    nodes = [helper.make_node("MatMul", ["state", "w"], ["a"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = read(nodes, weights={"state": table, "w": zeros(8, 8)}, inputs={"x": [2, 8]}, outputs=["y", "a"])
    assert graph.fixed_batch is None
    assert [shape_of(graph, index) for index in graph.outputs] == [["N", "8"], ["2", "8"]]


def test_elements_taken_one_by_one_follow_the_batch(read, shape_of) -> None:
    # How an exporter writes as_strided: positions in a flat tensor.
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["f"]),
        helper.make_node("Gather", ["f", "positions"], ["g"], axis=0),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    weights = {"flat": np.array([-1]), "positions": np.arange(16).reshape(2, 8, 1)}
    graph = read(nodes, weights=weights, inputs={"x": [2, 8]})
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    assert shape_of(graph, graph.outputs[0]) == ["N", "8", "1"]


def test_a_batch_that_stands_in_an_operator_stays_fixed(read) -> None:
    # Elements are gathered for the samples of the file alone.
    nodes = [
        helper.make_node("GatherElements", ["x", "rows"], ["g"], axis=1),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="/layer/MatMul"),
    ]
    weights = {"rows": np.array([[0, 1], [1, 0], [0, 0]]), "w": zeros(2, 8)}
    graph = read(nodes, weights=weights, inputs={"x": [3, 8]})
    assert graph.fixed_batch == 3
    assert "MatMul of 'layer' takes [3, 2] at every batch" in graph.fixed_batch_reason


def test_batch_that_cannot_be_opened_stays_fixed(read) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "x"], ["y"])]
    graph = read(nodes, weights={"w": zeros(4, 4)}, inputs={"x": [4, 4]})
    assert graph.fixed_batch == 4
    assert "batch at 4" in graph.fixed_batch_reason
    assert all(dim.per_sample == 0 for tensor in graph.tensors for dim in tensor.shape)


def test_open_batch_that_does_not_grow_needs_a_hint(build) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Mul", ["n", "n"], ["n2"]),
        helper.make_node("Unsqueeze", ["n2", "axes"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["c"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = build(
        nodes, weights={"zero": np.array(0), "axes": np.array([0])}, inputs={"x": ["N", 4]}, outputs=["y", "c"]
    )
    with pytest.raises(UnsupportedError) as caught:
        read_onnx(model)
    assert caught.value.code == "graph.batch_dependent"
    graph = read_onnx(model, batch_hint=6)
    assert graph.fixed_batch == 6
    assert graph.tensors[graph.outputs[1]].shape[0].fixed == 36


def attention_traced_at(batch: int) -> tuple[list, dict]:
    """A target that merges the batch, as tracing leaves where sizes went through Python."""
    nodes = [
        helper.make_node("Reshape", ["x", "merged"], ["m"]),
        helper.make_node("MatMul", ["m", "w"], ["h"]),
        helper.make_node("Reshape", ["h", "apart"], ["y"]),
    ]
    return nodes, {"merged": np.array([-1, 16]), "w": zeros(16, 8), "apart": np.array([batch, 6, 8])}


@pytest.mark.parametrize("hint", [None, 1, 4, 7])
def test_an_open_batch_that_tracing_wrote_into_the_file_is_found(build, shape_of, hint) -> None:
    nodes, weights = attention_traced_at(4)
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", 6, 16]}), batch_hint=hint)
    sizes = ["4", "6", "8"] if hint == 4 else ["N", "6", "8"]
    assert shape_of(graph, graph.outputs[0]) == sizes


def test_an_open_batch_that_no_other_follows_is_named(build) -> None:
    nodes = [
        helper.make_node("GatherElements", ["x", "rows"], ["g"], axis=1),
        helper.make_node("Concat", ["g", "x"], ["c"], axis=1),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    weights = {"rows": np.array([[0, 1], [1, 0], [0, 0], [1, 1]]), "w": zeros(10, 8)}
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", 8]}), batch_hint=8)
    assert graph.fixed_batch == 4
    assert "declares its batch open, but holds batch 4" in graph.fixed_batch_reason


def test_sizes_that_level_off_with_the_batch_fix_it(build) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Min", ["s", "four"], ["rows"]),
        helper.make_node("Slice", ["x", "zero", "rows"], ["first"]),
        helper.make_node("MatMul", ["first", "w"], ["y"]),
    ]
    weights = {"four": np.array([4]), "zero": np.array([0]), "w": zeros(32, 64)}
    model = build(nodes, weights=weights, inputs={"x": ["N", 32]})
    with pytest.raises(UnsupportedError) as caught:
        read_onnx(model)
    assert caught.value.code == "graph.batch_dependent"
    graph = read_onnx(model, batch_hint=32)
    assert graph.fixed_batch == 32
    assert "batch 64" in graph.fixed_batch_reason
    assert Workload.from_graph(graph).macs.sum() == 4 * 32 * 64
    weights["four"] = np.array([100])
    model = build(nodes, weights=weights, inputs={"x": ["N", 32]})
    assert read_onnx(model, batch_hint=256).fixed_batch == 256


@pytest.mark.parametrize("native", [1, 4])
def test_an_end_of_the_models_own_is_not_taken_for_the_batch(build, native) -> None:
    shape = helper.make_node("Shape", ["x"], ["s"], end=1)
    rows = helper.make_node("Min", ["s", "four"], ["rows"])
    first = helper.make_node("Slice", ["x", "zero", "rows"], ["y"])
    weights = {"four": np.array([4]), "zero": np.array([0])}
    graph = read_onnx(build([shape, rows, first], weights=weights, inputs={"x": [native, 32]}))
    assert graph.fixed_batch == native
    literal = helper.make_node("Slice", ["x", "zero", "five"], ["y"])
    weights = {"five": np.array([5]), "zero": np.array([0])}
    assert read_onnx(build([literal], weights=weights, inputs={"x": [native, 32]})).fixed_batch == native
    weights = {"five": np.array([native]), "zero": np.array([0])}  # a batch that tracing wrote down
    assert read_onnx(build([literal], weights=weights, inputs={"x": [native, 32]})).fixed_batch is None


def test_model_without_a_batch_is_fixed_at_one(read) -> None:
    graph = read([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": []})
    assert graph.fixed_batch == 1


def test_given_shape_overrides_the_files(read, shape_of) -> None:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["g"]), helper.make_node("Flatten", ["g"], ["y"])]
    graph = read(nodes, given="3,32,16")
    assert shape_of(graph, graph.inputs[0]) == ["N", "3", "32", "16"]


def test_given_shape_that_breaks_the_model(read) -> None:
    nodes, weights = classifier()
    with pytest.raises(UsageError, match=r"got 4,8,8, the file says 3,8,8") as caught:
        read(nodes, weights=weights, given="4,8,8")
    assert caught.value.code == "input.shape_conflict"
    with pytest.raises(UsageError) as caught:
        read(nodes, weights=weights, inputs={"x": [1, 3, 8, 8]}, given="3,16,16")
    assert caught.value.code == "input.shape_conflict"


def test_batch_hint_must_be_positive(build) -> None:
    with pytest.raises(UsageError) as caught:
        read_onnx(build([helper.make_node("Relu", ["x"], ["y"])]), batch_hint=0)
    assert caught.value.code == "batch.invalid"


def test_input_order_is_kept(read) -> None:
    nodes = [helper.make_node("Sub", ["b", "a"], ["y"])]
    graph = read(nodes, inputs={"a": ["N", 2], "b": ["N", 2]})
    assert [graph.tensors[index].name for index in graph.inputs] == ["a", "b"]
    assert all(graph.tensors[index].role is TensorRole.INPUT for index in graph.inputs)


def test_shapes_at_any_batch_are_those_of_that_batch(build) -> None:
    nodes, weights = classifier()
    open_graph = read_onnx(build(nodes, weights=weights))
    for batch in (1, 7):
        fixed = build(nodes, weights=weights, inputs={"x": [batch, 3, 8, 8]})
        other = read_onnx(fixed)
        assert [[d.at(batch) for d in t.shape] for t in open_graph.tensors] == [
            [d.at(batch) for d in t.shape] for t in other.tensors
        ]


def test_import_of_the_package_leaves_onnx_alone() -> None:
    code = "import sys, dippm, dippm.frontends.onnx; assert not {'onnx', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_needs_no_torch(tmp_path, build) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(build([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString())
    code = "import sys; sys.modules['torch'] = None; from dippm.frontends.onnx import read_onnx; read_onnx(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.parametrize("length", [20, 32, 40, 64, 200, 500])
def test_a_constant_made_for_each_sample_before_it_is_used_leaves_the_batch_open(build, kinds, length) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], end=1),
        helper.make_node("Concat", ["n", "sizes"], ["wide"], axis=0),
        helper.make_node("ConstantOfShape", ["wide"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("Relu", ["x"], ["active"]),
        helper.make_node("Sub", ["ones", "active"], ["y"]),
    ]
    weights = {"sizes": np.array([length, length])}
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", length, length]}))
    assert graph.fixed_batch is None
    assert sorted(kinds(graph)) == ["fill", "relu", "sub"]


def test_positional_and_named_shapes_agree(build) -> None:
    model = build([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": ["N", "c", "l"]})
    by_position = read_onnx(model, input=parse_input_shapes((4, 9)))
    by_name = read_onnx(model, input=parse_input_shapes({"x": (4, 9)}))
    assert by_position.tensors == by_name.tensors


@pytest.mark.parametrize("length", [20, 50, 64, 200])
def test_a_mask_made_for_each_sample_leaves_the_batch_open(build, kinds, length) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], end=1),
        helper.make_node("Concat", ["n", "sizes"], ["wide"], axis=0),
        helper.make_node("Expand", ["mask", "wide"], ["masks"]),
        helper.make_node("Not", ["masks"], ["hidden"]),
        helper.make_node("Where", ["hidden", "x", "least"], ["y"]),
    ]
    weights = {"sizes": np.array([length, length]), "mask": np.tril(np.ones((length, length), bool)), "least": zeros(1)}
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", length, length]}))
    assert graph.fixed_batch is None
    assert kinds(graph)[-1] == "binary"
