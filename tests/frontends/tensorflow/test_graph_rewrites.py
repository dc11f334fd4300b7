"""What a rewritten graph computes is what it computed before; TensorFlow runs both, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dippm.frontends.tensorflow.graph_rewrites import node_name

_SCRIPT = """
import json
import numpy as np
import tensorflow as tf
from dippm.frontends.tensorflow.graph_rewrites import rewrite_graph

numbers = np.random.default_rng(0)
gamma, beta, mean = (numbers.normal(size=5).astype(np.float32) for _ in range(3))
variance = (numbers.random(5) + 0.5).astype(np.float32)
root = np.float32(0.70710678)
images, rows = tf.TensorSpec((2, 4, 4, 5)), tf.TensorSpec((6, 5))
places = tf.TensorSpec((6,), tf.int32)

def normalize(x, scale):
    return tf.nn.batch_normalization(x, mean, tf.constant(variance), beta, scale, 1e-3)

functions = {
    "gelu": (images, lambda x: 0.5 * x * tf.math.erfc(-x * root)),
    "erfc": (rows, lambda x: tf.math.erfc(x)),
    "branches": (rows, lambda x: tf.cond(
        tf.reduce_sum(x) > 0, lambda: 0.5 * x * tf.math.erfc(-x * root), lambda: tf.math.erfc(x)
    )),
    "norm": (images, lambda x: normalize(x, gamma)),
    "norm without scale": (images, lambda x: normalize(x, None)),
    "norm of rows": (rows, lambda x: normalize(x, gamma)),
    "places": (places, lambda i: tf.gather(tf.constant(gamma), tf.where(i < 0, i + 5, i))),
}
result = {}
for name, (spec, function) in functions.items():
    graph = tf.Graph()
    with graph.as_default():
        given = tf.compat.v1.placeholder(spec.dtype, spec.shape, name="given")
        tf.identity(function(given), name="result")
    before = graph.as_graph_def()
    after = graph.as_graph_def()
    rewrite_graph(after)
    if spec.dtype == tf.int32:
        value = numbers.integers(0, 5, spec.shape)
    else:
        value = numbers.normal(size=spec.shape)
    outputs = []
    for graph_def in (before, after):
        with tf.Graph().as_default() as imported, tf.compat.v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            outputs.append(session.run("result:0", {"given:0": value}))
    nodes = [*after.node, *(node for function in after.library.function for node in function.node_def)]
    result[name] = [float(np.abs(outputs[0] - outputs[1]).max()), sorted(node.op for node in nodes)]
print(json.dumps(result))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_numbers_stay_and_the_operators_are_whole(run_beside_tensorflow: Callable[[str], Any]) -> None:
    found = run_beside_tensorflow(_SCRIPT)
    assert {name: difference < 1e-5 for name, (difference, _) in found.items()} == dict.fromkeys(found, True)
    operators = {name: set(kinds) for name, (_, kinds) in found.items()}
    assert "Erf" in operators["gelu"] & operators["erfc"] & operators["branches"]
    assert "Erfc" not in operators["gelu"] | operators["erfc"] | operators["branches"]
    assert "FusedBatchNormV3" in operators["norm"] & operators["norm without scale"]
    assert "FusedBatchNormV3" not in operators["norm of rows"]  # the operator is of images
    # The test and the sum are still there, and nothing reads them.
    assert "Identity" in operators["places"]
    assert not {"Select", "SelectV2"} & operators["places"]


_COUNTING = """
import json
import tempfile
from pathlib import Path
import tensorflow as tf
from dippm.frontends.tensorflow.graph_rewrites import rewrite_graph
from dippm.frontends.tensorflow.loading import load_saved_model

class Counting(tf.Module):
    def __init__(self):
        self.calls = tf.Variable(0, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def __call__(self, x):
        scale = tf.cast(self.calls, tf.float32)
        self.calls.assign_add(1)
        return x * scale + tf.random.stateless_normal(tf.shape(x), tf.stack([self.calls, 1]))

with tempfile.TemporaryDirectory() as folder:
    model = Counting()
    tf.saved_model.save(model, folder, signatures=model.__call__)
    graph_def = load_saved_model(Path(folder)).graph_def
rewrite_graph(graph_def)
with tf.Graph().as_default() as graph:
    tf.import_graph_def(graph_def, name="")
nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
print(json.dumps(sorted({node.op for node in nodes})))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_counts_of_calls_and_seeds_are_left_out(run_beside_tensorflow: Callable[[str], Any]) -> None:
    operators = run_beside_tensorflow(_COUNTING)
    assert {"Mul", "RandomStandardNormal"} <= set(operators)
    assert "StatelessRandomNormalV2" not in operators
    assert not [name for name in operators if name.startswith("Assign")]


@pytest.mark.parametrize(("reference", "name"), [("a/b:1", "a/b"), ("^a/b", "a/b"), ("a/b", "a/b")])
def test_the_node_behind_a_reference(reference: str, name: str) -> None:
    assert node_name(reference) == name
