"""A graph whose calls are inlined computes what it computed before; TensorFlow runs both, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow.function_calls import inline_calls

_SCRIPT = """
import json
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from dippm.frontends.tensorflow.function_calls import inline_calls

weight = tf.Variable(np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32) / 5)

@tf.function(jit_compile=True)
def product(x):
    return tf.matmul(x, weight)

@tf.function(experimental_attributes={"_noinline": True})
def nested(x):
    return tf.nn.relu(product(x))

functions = {
    "compiled": lambda x: tf.tanh(product(x)),
    "nested": lambda x: nested(x) + 1.0,
    "loop": lambda x: product(tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y)), (0, x))[1]),
    "none": lambda x: tf.tanh(x),
}
result = {}
for name, function in functions.items():
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec((2, 5), name="given"))
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    before = frozen.graph.as_graph_def()
    (given,), (output,) = ([each.name for each in tensors] for tensors in (frozen.inputs, frozen.outputs))
    copy = tf.compat.v1.GraphDef.FromString(before.SerializeToString())
    after = inline_calls(copy, inputs=[given], outputs=[output])
    outputs = []
    for graph_def in (before, after):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            outputs.append(session.run(output, {given: np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5)}))
    result[name] = [
        float(np.abs(outputs[0] - outputs[1]).max()),
        [sorted(node.op for node in graph_def.node) for graph_def in (before, after)],
    ]
print(json.dumps(result))
"""
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_numbers_stay_and_the_calls_go(run_beside_tensorflow: Callable[[str], Any]) -> None:
    found = run_beside_tensorflow(_SCRIPT)
    assert {name: difference < 1e-5 for name, (difference, _) in found.items()} == dict.fromkeys(found, True)
    before, after = ({name: set(kinds[place]) for name, (_, kinds) in found.items()} for place in (0, 1))
    # What freezing leaves is what this is about.
    assert [bool(CALLS & before[name]) for name in ("compiled", "nested", "loop", "none")] == [True, True, True, False]
    assert not any(CALLS & kinds for kinds in after.values())
    assert "MatMul" in after["compiled"] & after["nested"] & after["loop"]
    assert {"While", "StatelessWhile"} & after["loop"]  # a lowered loop could not be converted
    assert after["none"] == before["none"]


def test_a_graph_without_calls_is_not_touched() -> None:
    graph = SimpleNamespace(node=[SimpleNamespace(op="Relu")], library=SimpleNamespace(function=[]))
    assert inline_calls(graph, inputs=["x:0"], outputs=["y:0"]) is graph
