"""Operators of TensorFlow Lite, converted beside the framework itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.graph import DType, OpKind, TensorRole

SCRIPT = """
import json
import numpy as np
import tensorflow as tf
import keras
from keras import layers

x = image = keras.Input((16, 32))
x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, activation="gelu")(x)))
model = keras.Model(image, layers.Dense(2)(x))
numbers = np.random.default_rng(0)
model.set_weights([numbers.random(weight.shape, np.float32) for weight in model.get_weights()])
model.export(r"{folder}/saved", verbose=False)
for name, kinds in (("plain", None), ("half", [tf.float16])):
    converter = tf.lite.TFLiteConverter.from_saved_model(r"{folder}/saved")
    if kinds:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = kinds
    with open(rf"{folder}/{{name}}.tflite", "wb") as file:
        file.write(converter.convert())
rows = keras.Input((3, 8))
recurrent = keras.Model(rows, layers.Dense(2)(layers.LSTM(4)(rows)))
called = tf.function(lambda given: recurrent(given), input_signature=[tf.TensorSpec((1, 3, 8))])
converter = tf.lite.TFLiteConverter.from_concrete_functions([called.get_concrete_function()], recurrent)
with open(r"{folder}/looped.tflite", "wb") as file:
    file.write(converter.convert())
print(json.dumps("done"))
"""

VARIABLE = """
import json
from types import SimpleNamespace
from onnx import TensorProto
from dippm.frontends.tensorflow.lite_operators import LITE_HANDLERS

class Graph:
    def __init__(self):
        self.made, self.replaced, self.removed = {}, [], []
    def get_shape(self, name):
        return [3, 4]
    def get_dtype(self, name):
        return TensorProto.FLOAT
    def get_node_by_name(self, name):
        return self.made.get(name)
    def make_const(self, name, value):
        self.made[name] = SimpleNamespace(output=[name], value=value)
        return self.made[name]
    def replace_all_inputs(self, old, new):
        self.replaced.append((old, new))
    def remove_node(self, name):
        self.removed.append(name)

graph = Graph()
write, _ = LITE_HANDLERS["TFL_READ_VARIABLE"]
for name in ("first", "second"):
    write(graph, SimpleNamespace(name=name, input=["kernel"], output=[name + ":0"]), name, None)
shapes = {name: list(node.value.shape) for name, node in graph.made.items()}
print(json.dumps([shapes, graph.replaced, graph.removed]))
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path / "cache"))


def test_a_transformer_is_what_it_was_made_from(run_beside_tensorflow: Callable[[str], Any], tmp_path: Path) -> None:
    run_beside_tensorflow(SCRIPT.format(folder=tmp_path))
    graphs = {name: dippm.load(tmp_path / f"{name}.tflite") for name in ("plain", "half")}
    for graph in graphs.values():
        counts = Counter(node.kind for node in graph.nodes)
        assert (counts[OpKind.LAYER_NORM], counts[OpKind.ATTENTION], counts[OpKind.GELU]) == (2, 1, 1)
        assert not counts[OpKind.CAST]
        assert not counts[OpKind.UNKNOWN]
        weights = {tensor.dtype for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER}
        assert weights == {DType.FLOAT32}
    assert graphs["half"].parameter_count == graphs["plain"].parameter_count
    # Weights of a loop are variables, whose handles are handed into it.
    looped = dippm.load(tmp_path / "looped.tflite")
    assert looped.unsupported_ops == {}
    assert dippm.predict(looped, device="A100").macs == 3 * 4 * 4 * (8 + 4) + 4 * 2


def test_a_variable_is_stored_once(run_beside_tensorflow: Callable[[str], Any]) -> None:
    made, replaced, removed = run_beside_tensorflow(VARIABLE)
    assert made == {"kernel/stored": [3, 4]}
    assert replaced == [["first:0", "kernel/stored"], ["second:0", "kernel/stored"]]
    assert removed == ["first", "second"]
