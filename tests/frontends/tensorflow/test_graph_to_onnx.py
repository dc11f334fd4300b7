"""What is done to a converted graph, for which TensorFlow itself is not needed, and what is done before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from dippm.frontends.tensorflow.graph_to_onnx import _name_inputs, _tensors

make = helper.make_node
OLD, NEW = "serving_default_image:0", "image"


def value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])


def model(*nodes: Any, outputs: tuple[str, ...] = ("y",), inputs: tuple[str, ...] = (OLD,)) -> Any:
    graph = helper.make_graph(list(nodes), "model", [value(name) for name in inputs], [value(n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def branch(*nodes: Any, output: str, stored: Any = ()) -> Any:
    return helper.make_graph(list(nodes), "branch", [], [value(output)], list(stored))


def test_branches_read_inputs_by_their_new_names() -> None:
    flag = make("Constant", [], ["flag"], value=helper.make_tensor("f", TensorProto.BOOL, [], [True]))
    inner = make("If", ["flag"], ["z"], then_branch=branch(make("Relu", [OLD], ["p"]), output="p"),
                 else_branch=branch(make("Neg", [OLD], ["n"]), output="n"))  # fmt: skip
    outer = make("If", ["flag"], ["y"], then_branch=branch(inner, output="z"),
                 else_branch=branch(make("Abs", [OLD], ["q"]), output="q"))  # fmt: skip
    converted = model(flag, outer)
    onnx.checker.check_model(converted)
    _name_inputs(converted.graph)
    assert [each.name for each in converted.graph.input] == [NEW]
    assert OLD not in str(converted)
    onnx.checker.check_model(converted)


def test_an_input_that_is_an_output_too_keeps_one_name() -> None:
    converted = model(make("Relu", [OLD], ["y"]), outputs=("y", OLD))
    _name_inputs(converted.graph)
    assert [each.name for each in converted.graph.output] == ["y", NEW]


def test_a_name_that_something_else_has_is_not_given_twice() -> None:
    converted = model(make("Relu", [OLD], [NEW]), make("Abs", [NEW], ["y"]))
    _name_inputs(converted.graph)
    assert [each.name for each in converted.graph.input] == [OLD]
    onnx.checker.check_model(converted)


def test_inputs_that_would_share_a_name_keep_theirs() -> None:
    converted = model(make("Add", [OLD, NEW], ["y"]), inputs=(OLD, NEW))
    _name_inputs(converted.graph)
    assert [each.name for each in converted.graph.input] == [OLD, NEW]


def test_stored_tensors_of_branches_are_found() -> None:
    stored = helper.make_tensor("w", TensorProto.FLOAT, [1, 4], [0.0] * 4)
    flag = make("Constant", [], ["flag"], value=helper.make_tensor("f", TensorProto.BOOL, [], [True]))
    add = branch(make("Add", [OLD, "w"], ["p"]), output="p", stored=[stored])
    choice = make("If", ["flag"], ["y"], then_branch=add, else_branch=branch(make("Neg", [OLD], ["n"]), output="n"))
    assert [tensor.name for tensor in _tensors(model(flag, choice).graph)] == ["f", "w"]


_BRANCHES = """
import json
import tempfile
from pathlib import Path
import onnx
import tensorflow as tf
from dippm.frontends.tensorflow.graph_to_onnx import convert_frozen
from dippm.frontends.tensorflow.loading import load_saved_model

class Model(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(tf.ones((3, 3, 8, 8)))

    @tf.function(input_signature=[tf.TensorSpec((None, 16, 16, 8), tf.float32)])
    def __call__(self, x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.conv2d(x, self.weight, 1, "SAME"), lambda: x)

with tempfile.TemporaryDirectory() as folder:
    model = Model()
    tf.saved_model.save(model, folder, signatures=model.__call__)
    path = Path(folder, "model.onnx")
    convert_frozen(load_saved_model(Path(folder)), path)
    nodes = onnx.load(path, load_external_data=False).graph.node
branches = [attribute.g for node in nodes if node.op_type == "If" for attribute in node.attribute]
print(json.dumps([sorted(node.op_type for node in branch.node) for branch in branches]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_convolutions_in_branches_know_their_weights(run_beside_tensorflow: Callable[[str], Any]) -> None:
    branches = run_beside_tensorflow(_BRANCHES)
    assert len(branches) == 2
    assert sum("Conv" in operators for operators in branches) == 1
