"""Which kernels eager PyTorch launches for operators, beyond their shapes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.graph import DType, OpKind, TensorRole


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def test_number_in_the_code_is_an_attribute(read) -> None:
    graph = read([helper.make_node("Sub", ["val_1", "x"], ["y"])], weights={"val_1": np.float32(1.5)})
    node = graph.nodes[0]
    assert (node.kind, node.inputs) == (OpKind.SUB, graph.inputs)
    assert dict(node.attributes) == {"scalar": 1.5, "scalar_first": True}


def test_learned_number_is_a_tensor(read) -> None:
    graph = read([helper.make_node("Mul", ["x", "scale"], ["y"])], weights={"scale": zeros(1)})
    assert len(graph.nodes[0].inputs) == 2
    assert graph.parameter_count == 1


def test_uneven_padding_is_an_operator_of_its_own(read, kinds, shape_of) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])
    graph = read([node], weights={"w": zeros(4, 3, 3, 3)})
    assert kinds(graph) == ["pad", "conv"]
    assert shape_of(graph, graph.outputs[0]) == ["N", "4", "4", "4"]
    assert graph.nodes[1].attributes["padding"] == (0, 0)


@pytest.mark.parametrize(("trans_b", "shape"), [(0, (48, 5)), (1, (5, 48))])
def test_gemm_with_a_stored_matrix_is_linear(read, kinds, trans_b: int, shape: tuple[int, ...]) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=trans_b)
    graph = read([node], weights={"w": zeros(*shape), "b": zeros(5)}, inputs={"x": ["N", 48]})
    assert kinds(graph) == ["linear"]
    assert len(graph.nodes[0].inputs) == 3


def test_turned_weight_of_a_linear_layer_is_the_weight(read, kinds) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["y"]),
    ]
    graph = read(nodes, weights={"w": zeros(5, 8), "b": zeros(5)})
    assert kinds(graph) == ["linear"]
    assert [graph.tensors[index].name for index in graph.nodes[0].inputs] == ["x", "w", "b"]


def test_table_look_ups(read, kinds) -> None:
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["w"]),
        helper.make_node("Gather", ["words", "first"], ["p"]),
        helper.make_node("Add", ["w", "p"], ["y"]),
    ]
    weights = {"words": zeros(100, 16), "first": np.arange(6)}
    graph = read(nodes, weights=weights, inputs={"ids": ["N", 6]}, dtypes={"ids": TensorProto.INT64})
    assert kinds(graph) == ["embedding", "gather", "add"]


def test_select_and_slice_are_views(read, kinds) -> None:
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["s"], axis=1),
        helper.make_node("Slice", ["s", "zero1", "two", "one1"], ["y"]),
    ]
    weights = {"zero": np.array(0), "zero1": np.array([0]), "two": np.array([2]), "one1": np.array([1])}
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["view", "view"]
    assert graph.tensors[graph.outputs[0]].alias_of == graph.inputs[0]


def test_dropout_and_identity_launch_nothing(read, kinds) -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["d"]),
        helper.make_node("Identity", ["d"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    assert kinds(read(nodes)) == ["relu"]


def test_cast_to_the_same_type_launches_nothing(read, kinds) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT16),
    ]
    graph = read(nodes)
    assert kinds(graph) == ["cast"]
    assert graph.tensors[graph.outputs[0]].dtype is DType.FLOAT16


def test_lstm_counts_its_own_weights(read) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=16, direction="bidirectional")
    weights = {"w": zeros(2, 64, 8), "r": zeros(2, 64, 16), "b": zeros(2, 128)}
    graph = read([node], weights=weights, inputs={"x": [20, "batch", 8]})
    assert graph.nodes[0].attributes == {
        "hidden_size": 16, "num_layers": 1, "num_directions": 2, "batch_first": False,
    }  # fmt: skip
    assert graph.parameter_count == 2 * (64 * 8 + 64 * 16 + 128)
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["20", "2", "N", "16"]


@pytest.mark.parametrize(("values", "is_causal"), [("causal", True), ("free", False)])
def test_causal_mask_is_known_by_its_values(read, values: str, is_causal: bool) -> None:
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1) if values == "causal" else np.zeros((6, 6), np.float32)
    nodes = [
        helper.make_node("Constant", [], ["mask"], value=numpy_helper.from_array(mask, "m")),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 2, 6, 6]})
    assert graph.nodes[0].attributes.get("causal_mask", False) is is_causal


def test_quantised_weight_stays_as_stored_and_becomes_numbers_at_every_call(read, kinds) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"]),
        helper.make_node("Conv", ["x", "wf"], ["y"]),
    ]
    weights = {"w": np.zeros((4, 3, 1, 1), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["dequantize", "conv"]
    assert graph.parameter_count == 12
    stored = graph.tensors[graph.nodes[0].inputs[0]]
    assert (stored.dtype, stored.role) == (DType.INT8, TensorRole.PARAMETER)
    assert "quantised" in graph.warnings[0]


def branch(op_type: str) -> object:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op_type, ["x"], ["b"])], op_type, [], [value])


@pytest.mark.parametrize(("flag", "kind"), [(True, "relu"), (False, "tanh")])
def test_known_branch_is_taken(read, kinds, flag: bool, kind: str) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    graph = read([node], weights={"c": np.array(flag)})
    assert kinds(graph) == [kind]
    assert graph.warnings == ()


def test_unknown_branch_is_a_warning(read) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    graph = read([node], inputs={"x": ["N", 3], "c": []}, dtypes={"c": TensorProto.BOOL})
    assert len(graph.nodes) == 1
    assert "branch" in graph.warnings[0]


def loop_body() -> object:
    def value(name: str, dtype: int) -> object:
        return helper.make_tensor_value_info(name, dtype, None)

    nodes = [helper.make_node("Relu", ["v"], ["out"]), helper.make_node("Identity", ["go"], ["again"])]
    inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("v", TensorProto.FLOAT)]
    outputs = [value("again", TensorProto.BOOL), value("out", TensorProto.FLOAT)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def test_loop_of_known_length_is_unrolled(read, kinds) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], weights={"n": np.array(5)})
    assert kinds(graph) == ["relu"] * 5
    assert graph.warnings == ()


def test_loop_of_unknown_length_is_a_warning(read, kinds) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], inputs={"x": ["N", 3], "n": []}, dtypes={"n": TensorProto.INT64})
    assert kinds(graph) == ["relu"]
    assert "loop" in graph.warnings[0].lower()


def test_the_side_with_more_work_is_counted_and_what_it_reads_is_kept(read, kinds) -> None:
    def side(*nodes: object) -> object:
        value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        return helper.make_graph(list(nodes), "side", [], [value])

    heavy = side(helper.make_node("MatMul", ["x", "w"], ["b"]))
    long = side(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Strange", ["r"], ["q"], domain="my"),
        helper.make_node("Neg", ["q"], ["b"]),
    )
    graphs = []
    for sides in ((heavy, long), (long, heavy)):
        node = helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])
        options = {"inputs": {"x": ["N", 64], "c": []}, "weights": {"w": zeros(64, 64)}, "domains": ["my"]}
        graphs.append(read([node], dtypes={"c": TensorProto.BOOL}, **options))
    for graph in graphs:
        assert kinds(graph) == ["linear"]
        assert graph.unsupported_ops == {}
        assert "more work" in graph.warnings[0] or "more work" in graph.warnings[-1]


def test_a_side_that_cannot_run_is_passed_over(read, kinds) -> None:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    squeeze = helper.make_graph([helper.make_node("Squeeze", ["x", "one"], ["b"])], "squeeze", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=squeeze, else_branch=branch("Tanh"))
    options = {"inputs": {"x": ["N", 3], "c": []}, "dtypes": {"c": TensorProto.BOOL}}
    graph = read([node], weights={"one": np.array([1])}, **options)
    assert kinds(graph) == ["tanh"]


def test_what_a_side_that_is_not_counted_makes_on_demand_outlives_it(read, kinds) -> None:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    adding = helper.make_graph([helper.make_node("Add", ["x", "sizes"], ["b"])], "adding", [], [value])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("If", ["c"], ["t"], then_branch=adding, else_branch=_products()),
        helper.make_node("Add", ["t", "sizes"], ["y"]),
    ]
    options = {"inputs": {"x": ["N", 2], "c": []}, "dtypes": {"c": TensorProto.BOOL}}
    graph = read(nodes, weights={"w": zeros(2, 2)}, **options)
    assert kinds(graph) == ["fill", "linear", "add"]


def _products() -> object:
    value = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["p"])], "products", [], [value])


@pytest.mark.parametrize(("limit", "rounds", "said"), [(6, 6, "may end before"), (2**62, 1, "counted once")])
def test_a_loop_that_the_data_ends(read, kinds, limit: int, rounds: int, said: str) -> None:
    def value(name: str, dtype: int) -> object:
        return helper.make_tensor_value_info(name, dtype, None)

    nodes = [
        helper.make_node("Relu", ["v"], ["out"]),
        helper.make_node("ReduceMax", ["out"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["again"]),
    ]
    inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("v", TensorProto.FLOAT)]
    body = helper.make_graph(nodes, "body", inputs, [value("again", TensorProto.BOOL), value("out", TensorProto.FLOAT)])
    node = helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)
    graph = read([node], weights={"n": np.array(limit), "yes": np.array(True), "zero": np.float32(0)})
    assert kinds(graph).count("relu") == rounds
    assert said in graph.warnings[0]


def test_endless_loop_is_cut_off(read) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop_body())
    graph = read([node], weights={"n": np.array(2**40)})
    assert len(graph.nodes) <= 20_001
    assert "runs 1099511627776 times" in graph.warnings[0]


def test_scan_runs_once_for_each_slice(read, kinds) -> None:
    def value(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [value("s"), value("e")],
        [value("t"), value("o")],
    )
    node = helper.make_node("Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    graph = read([node], inputs={"x": ["N", 4, 5], "first": ["N", 5]}, outputs=["last", "y"])
    assert kinds(graph).count("add") == 4
    assert kinds(graph)[-1] == "concat"


def test_sizes_known_only_at_run_time_are_bounded(read) -> None:
    graph = read([helper.make_node("NonZero", ["x"], ["y"])], inputs={"x": ["N", 10]})
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["2", "10N"]
    assert "NonZero" in graph.warnings[0]


HEADS = ["view"] * 6 + ["attention", "view", "view"]
FUSED = [
    ("FusedMatMul", "x w", {"transB": 1}, {"w": (7, 8)}, ["linear"]),
    ("FusedGemm", "f w b", {"activation": "Relu"}, {"w": (8, 7), "b": (7,)}, ["linear", "relu"]),
    ("SkipLayerNormalization", "x x g g", {}, {"g": (8,)}, ["add", "layer_norm"]),
    ("SkipSimplifiedLayerNormalization", "x x g", {}, {"g": (8,)}, ["add", "rms_norm"]),
    ("BiasGelu", "x g", {}, {"g": (8,)}, ["add", "gelu"]),
    ("QuickGelu", "x", {}, {}, ["gelu"]),
    ("MatMulNBits", "x w s", {"K": 8, "N": 7}, {"w": (7, 1, 4), "s": (7,)}, ["dequantize", "linear"]),
    ("Attention", "x w b", {"num_heads": 2}, {"w": (8, 24), "b": (24,)}, ["linear", "view", "view", "view", *HEADS]),
    ("MultiHeadAttention", "x x x", {"num_heads": 2}, {}, HEADS),
    ("GroupQueryAttention", "x h h", {"num_heads": 4, "kv_num_heads": 2}, {}, HEADS),
    ("RotaryEmbedding", "x i c c", {}, {"c": (6, 4)}, ["view", "view", "unary", "concat", "mul", "mul", "add"]),
    ("QLinearAdd", "x s s x s s s s", {}, {"s": ()}, ["dequantize", "dequantize", "add", "quantize"]),
    ("NhwcConv", "n k", {}, {"k": (4, 8, 1, 1)}, ["view", "conv", "view"]),
]


@pytest.mark.parametrize(("op_type", "names", "attributes", "shapes", "expected"), FUSED)
def test_fused_operators_of_onnxruntime(build, kinds, op_type, names, attributes, shapes, expected) -> None:
    node = helper.make_node(op_type, names.split(), ["y"], domain="com.microsoft", **attributes)
    inputs = {"x": ["N", 6, 8], "f": ["N", 8], "h": ["N", 6, 4], "i": ["N", 6], "n": ["N", 5, 5, 8]}
    used = {name: shape for name, shape in inputs.items() if name in node.input}
    weights = {name: zeros(*shape) for name, shape in shapes.items()}
    model = build([node], inputs=used, weights=weights, domains=["com.microsoft"], dtypes={"i": TensorProto.INT64})
    graph = read_onnx(model)
    assert kinds(graph) == expected
    assert graph.unsupported_ops == {}


def test_large_constant_is_a_buffer_and_a_layers_constant_is_its_weight(read) -> None:
    nodes = [
        helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(zeros(300, 300), "m")),
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(zeros(300, 4), "w")),
        helper.make_node("Add", ["x", "m"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 300, 300]})
    assert graph.parameter_count == 1200
    assert {tensor.role.value for tensor in graph.tensors} == {"input", "buffer", "parameter", "activation"}


@pytest.mark.parametrize("changed", [(), ("score_mod",), ("score_mod", "prob_mod")])
def test_flex_attention_is_one_kernel_until_its_scores_are_changed(build, kinds, changed: tuple[str, ...]) -> None:
    def change(name: str) -> object:
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, None) for end in (f"{name}_in", f"{name}_out")]
        return helper.make_graph([helper.make_node("Tanh", [ends[0].name], [ends[1].name])], name, ends[:1], ends[1:])

    attributes = {name: change(name) for name in changed}
    node = helper.make_node("FlexAttention", ["q", "k", "k"], ["y"], domain="ai.onnx.preview", **attributes)
    inputs = {"q": ["N", 4, 6, 8], "k": ["N", 2, 5, 8]}
    graph = read_onnx(build([node], inputs=inputs, domains=["ai.onnx.preview"]))
    if not changed:
        assert kinds(graph) == ["attention"]
    else:
        steps = ["copy", "copy", "matmul", "tanh", "softmax", *(["tanh"] if len(changed) > 1 else []), "matmul"]
        assert [kind for kind in kinds(graph) if kind != "view"] == steps
    assert graph.unsupported_ops == {}
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "4", "6", "8"]
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * 4 * 2 * 6 * 5 * 8
