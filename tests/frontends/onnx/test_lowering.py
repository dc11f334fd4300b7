from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.onnx import lowering, read_onnx

ZEROS = np.zeros((4, 3, 1, 1), dtype=np.float32)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([helper.make_node("Relu", ["nothing"], ["y"])], ["y"]),
        ([helper.make_node("Relu", ["x"], ["y"])], ["other"]),
        ([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["x"], ["y"])], ["y"]),
        ([helper.make_node("Relu", ["x"], ["y"])], []),
    ],
)
def test_names_must_fit_together(read, nodes, outputs) -> None:
    with pytest.raises(ModelReadError) as caught:
        read(nodes, outputs=outputs)
    assert caught.value.code == "onnx.invalid"
    assert "node ''" not in str(caught.value)


def test_opset_below_seven_is_unsupported(read) -> None:
    with pytest.raises(UnsupportedError, match="opset 6") as caught:
        read([helper.make_node("Relu", ["x"], ["y"])], opset=6)
    assert caught.value.code == "onnx.opset"


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, 23])
def test_opsets_from_seven_on_are_read(read, kinds, opset: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    graph = read(nodes, weights={"w": ZEROS}, opset=opset)
    assert kinds(graph) == ["conv", "relu", "global_pool", "view"]


def test_functions_are_inlined_with_their_attributes(build, kinds) -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    turn = helper.make_node("Transpose", ["t"], ["b"])
    turn.attribute.add(name="perm", ref_attr_name="order", type=onnx.AttributeProto.INTS)
    function = helper.make_function(
        "f", "Block", ["a"], ["b"], [leaky, turn], [helper.make_opsetid("", 17)], ["slope", "order"]
    )
    nodes = [
        helper.make_node("Block", ["x"], ["h"], domain="f", slope=0.1, order=[0, 2, 3, 1]),
        helper.make_node("Block", ["h"], ["y"], domain="f", slope=0.2, order=[0, 3, 1, 2]),
    ]
    graph = read_onnx(build(nodes, functions=[function], domains=["f"]))
    assert kinds(graph) == ["leaky_relu", "view", "leaky_relu", "view"]
    assert graph.unsupported_ops == {}
    assert graph.nodes[1].attributes["perm"] == (0, 2, 3, 1)


def test_function_that_calls_itself_is_an_error(build) -> None:
    inner = helper.make_node("F", ["a"], ["b"], domain="f")
    function = helper.make_function("f", "F", ["a"], ["b"], [inner], [helper.make_opsetid("f", 1)])
    model = build([helper.make_node("F", ["x"], ["y"], domain="f")], functions=[function], domains=["f"])
    with pytest.raises(ModelReadError) as caught:
        read_onnx(model)
    assert caught.value.code == "onnx.too_large"


def test_functions_that_multiply_are_an_error(build, monkeypatch) -> None:
    monkeypatch.setattr(lowering, "_OP_LIMIT", 20_000)
    functions = []
    for level in range(20):
        called = f"F{level + 1}" if level < 19 else "Relu"
        domain = "f" if level < 19 else ""
        nodes = []
        for step in range(4):
            source = "a" if step == 0 else f"t{step - 1}"
            nodes.append(helper.make_node(called, [source], [f"t{step}"], domain=domain))
        opsets = [helper.make_opsetid("f", 1), helper.make_opsetid("", 17)]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["t3"], nodes, opsets))
    model = build([helper.make_node("F0", ["x"], ["y"], domain="f")], functions=functions, domains=["f"])
    with pytest.raises(ModelReadError) as caught:
        read_onnx(model)
    assert caught.value.code == "onnx.too_large"


def test_weights_that_the_exporter_merged_count_again(read) -> None:
    nodes = [
        helper.make_node("Identity", ["bn.weight"], ["bn.running_var"]),
        helper.make_node("Identity", ["bn.bias"], ["bn.running_mean"]),
        helper.make_node(
            "BatchNormalization", ["x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["y"]
        ),
    ]
    weights = {"bn.weight": np.ones(3, np.float32), "bn.bias": np.zeros(3, np.float32)}
    graph = read(nodes, weights=weights)
    roles = [graph.tensors[index].role.value for index in graph.nodes[0].inputs]
    assert roles == ["input", "parameter", "parameter", "buffer", "buffer"]
    assert graph.parameter_count == 6


def test_a_weight_under_another_name_counts_once(read, kinds) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"]),
        helper.make_node("Identity", ["table"], ["same"]),
        helper.make_node("Identity", ["same"], ["again"]),
        helper.make_node("Transpose", ["again"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["y"]),
    ]
    weights = {"table": np.zeros((100, 8), np.float32)}
    graph = read(nodes, inputs={"x": ["N", 7]}, dtypes={"x": onnx.TensorProto.INT64}, weights=weights)
    assert graph.parameter_count == 100 * 8
    assert kinds(graph) == ["embedding", "linear"]


def test_another_name_for_a_weight_must_be_new(read) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["w"], ["x"])]
    with pytest.raises(ModelReadError, match="made twice"):
        read(nodes, weights={"w": ZEROS}, outputs=["y"])


@pytest.mark.parametrize(("name", "expected"), [("Mine", ["relu"]), ("FusedMatMul", ["linear"])])
def test_a_function_of_the_model_wins_where_its_domain_has_no_rule(build, kinds, name: str, expected: list) -> None:
    inside = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("com.microsoft", name, ["a", "w"], ["b"], inside, [helper.make_opsetid("", 17)])
    node = helper.make_node(name, ["x", "w"], ["y"], domain="com.microsoft")
    weights = {"w": np.zeros((64, 32), np.float32)}
    model = build([node], inputs={"x": ["N", 64]}, weights=weights, functions=[function], domains=["com.microsoft"])
    graph = read_onnx(model)
    assert kinds(graph) == expected
    assert graph.unsupported_ops == {}


def test_shared_weights_count_once(read) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Conv", ["a", "w"], ["y"])]
    graph = read(nodes, weights={"w": np.zeros((3, 3, 1, 1), np.float32)})
    assert graph.parameter_count == 9


def test_weights_listed_as_inputs_are_no_inputs(read) -> None:
    graph = read(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        inputs={"x": ["N", 3, 8, 8], "w": [4, 3, 1, 1]},
        weights={"w": ZEROS},
    )
    assert len(graph.inputs) == 1


@pytest.mark.parametrize("domain", ["com.microsoft.nchwc", "com.ms.internal.nhwc"])
def test_file_rewritten_for_one_machine_is_refused(build, domain: str) -> None:
    model = build([helper.make_node("Conv", ["x", "w"], ["y"], domain=domain)], weights={"w": np.zeros((8, 3, 3, 3))})
    with pytest.raises(UnsupportedError, match=rf"{domain}.Conv.*ORT_ENABLE_EXTENDED") as caught:
        read_onnx(model)
    assert caught.value.code == "onnx.laid_out"


def test_optional_tensor_is_taken_to_be_there(build) -> None:
    model = build([helper.make_node("Relu", ["x"], ["y"])])
    declared = model.graph.input[0]
    inner = onnx.TypeProto()
    inner.CopyFrom(declared.type)
    declared.type.CopyFrom(helper.make_optional_type_proto(inner))
    graph = read_onnx(model)
    assert [str(dim) for dim in graph.tensors[graph.inputs[0]].shape] == ["N", "3", "8", "8"]
