"""One small network in every kind of file that TensorFlow writes, made by one process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
import keras
from keras import layers
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

folder = sys.argv[1]
image = keras.Input((32, 32, 3), name="image")
x = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
x = layers.ReLU()(layers.BatchNormalization()(x))
x = layers.MaxPooling2D()(x)
x = layers.Activation("silu")(layers.DepthwiseConv2D(3, padding="same")(x))
x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
model = keras.Model(image, x)
# TensorFlow Lite drops what is zero and keeps one of two equal tensors.
numbers = np.random.default_rng(0)
model.set_weights([numbers.random(weight.shape, np.float32) for weight in model.get_weights()])
model.export(f"{folder}/saved", verbose=False)
model.save(f"{folder}/model.keras")
model.save(f"{folder}/model.h5")
model.save_weights(f"{folder}/model.weights.h5")
spec = tf.TensorSpec((None, 32, 32, 3), tf.float32, name="image")
function = tf.function(lambda image: model(image, training=False)).get_concrete_function(spec)
tf.io.write_graph(convert_variables_to_constants_v2(function).graph, folder, "frozen.pb", as_text=False)
def lite(name, **settings):
    converter = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/saved")
    for key, value in settings.items():
        setattr(converter, key, value)
    open(f"{folder}/{name}.tflite", "wb").write(converter.convert())
lite("plain")
images = [[np.zeros((1, 32, 32, 3), np.float32)], [np.ones((1, 32, 32, 3), np.float32)]]
lite("int8", optimizations=[tf.lite.Optimize.DEFAULT], representative_dataset=lambda: images,
     inference_input_type=tf.int8, inference_output_type=tf.int8)
vector = keras.Input((8,))
keras.Model(vector, layers.Lambda(lambda x: x * 2)(vector)).save(f"{folder}/lambda.keras")
@keras.saving.register_keras_serializable(package="mine")
class Own(layers.Layer):
    def call(self, x):
        return x * 3
own = keras.Model(vector, Own()(vector))
own.save(f"{folder}/own.keras")
own.save(f"{folder}/own.h5")
def classify(x):
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
wide = keras.Input((56, 56, 256))
for name, groups in (("grouped", 32), ("depthwise", 256)):
    x = layers.Conv2D(256, 3, groups=groups, padding="same", use_bias=False)(wide)
    apart = keras.Model(wide, classify(x))
    apart.save(f"{folder}/{name}.keras")
    apart.export(f"{folder}/{name}", verbose=False)
words = keras.Input((20,), dtype="int32", name="words")
for name, has_mask in (("masked", True), ("unmasked", False)):
    x = layers.Embedding(100, 16, mask_zero=has_mask)(words)
    x = layers.LSTM(8)(layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x))
    recurrent = keras.Model(words, layers.Dense(2)(x))
    recurrent.save(f"{folder}/{name}.keras")
    recurrent.save(f"{folder}/{name}.h5")
    x = layers.Embedding(100, 16, mask_zero=has_mask)(words)
    x = layers.GRU(8, go_backwards=True)(layers.Bidirectional(layers.GRU(8, return_sequences=True))(x))
    keras.Model(words, layers.Dense(2)(x)).save(f"{folder}/{name}_gru.keras")
def encoder():
    return keras.Sequential([layers.Conv2D(8, 3), layers.GlobalAveragePooling2D(), layers.Dense(4)])
other = keras.Input((32, 32, 3))
shared, own, copied = encoder(), encoder(), encoder()
keras.Model([image, other], layers.Dense(2)(shared(image) - shared(other))).save(f"{folder}/shared.keras")
twins = keras.Model([image, other], layers.Dense(2)(own(image) - copied(other)))
copied.set_weights(own.get_weights())
twins.save(f"{folder}/copied.keras")
keras.mixed_precision.set_global_policy("mixed_float16")
x = layers.BatchNormalization()(layers.Conv2D(16, 3)(image))
mixed = keras.Model(image, classify(x))
keras.mixed_precision.set_global_policy("float32")
mixed.save(f"{folder}/mixed.keras")
mixed.export(f"{folder}/mixed", verbose=False)
open_image = keras.Input((None, None, 3), name="image")
keras.Model(open_image, layers.Conv2D(4, 3)(open_image)).export(f"{folder}/open", verbose=False)
words = layers.TextVectorization(vocabulary=["one", "two"], output_sequence_length=4)
text = keras.Input((), dtype="string")
keras.Model(text, layers.Dense(2)(layers.Flatten()(layers.Embedding(4, 3)(words(text))))).save(f"{folder}/text.keras")
class Two(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.zeros((4, 5)))
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def first(self, x):
        return x @ self.weight
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def second(self, x):
        return x @ self.weight + 1.0
two = Two()
tf.saved_model.save(two, f"{folder}/two", signatures={"first": two.first, "second": two.second})
tf.saved_model.save(two, f"{folder}/one", signatures={"only": two.first})
tf.saved_model.save(two, f"{folder}/none")
for name, keys in (("two", ["first", "second"]), ("one", ["second"])):
    converter = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/two", signature_keys=keys)
    open(f"{folder}/{name}.tflite", "wb").write(converter.convert())
class Parts(tf.Module):
    @tf.function(input_signature=[tf.SparseTensorSpec((None, 4), tf.float32)])
    def sparse(self, x):
        return tf.sparse.sparse_dense_matmul(x, tf.ones((4, 5)))
    @tf.function(input_signature=[tf.RaggedTensorSpec((None, None), tf.float32)])
    def ragged(self, x):
        return x.to_tensor()
parts = Parts()
tf.saved_model.save(parts, f"{folder}/sparse", signatures=parts.sparse)
tf.saved_model.save(parts, f"{folder}/sparse_traced", signatures=parts.sparse.get_concrete_function())
tf.saved_model.save(parts, f"{folder}/ragged", signatures=parts.ragged)
number = keras.Input((4,), dtype="int64")
for name, layer in (("hashing", layers.Hashing(3)), ("lookup", layers.IntegerLookup(vocabulary=[3, 5]))):
    keras.Model(number, layers.Dense(2)(layers.Flatten()(layers.Embedding(4, 3)(layer(number))))).save(
        f"{folder}/{name}.keras")
keras.mixed_precision.set_global_policy("bfloat16")
x = layers.LayerNormalization()(layers.Conv2D(16, 3)(image))
keras.Model(image, classify(x)).save(f"{folder}/bfloat16.keras")
keras.mixed_precision.set_global_policy("float32")
with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
    weight = tf.compat.v1.get_variable("weight", (4, 5), use_resource=False)
    tf.matmul(x, weight)
    tf.io.write_graph(graph, folder, "thawed.pb", as_text=False)
with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder_with_default(tf.zeros((1, 4)), (None, 4), name="x")
    is_trained = tf.compat.v1.placeholder_with_default(False, (), name="is_trained")
    tf.matmul(x, tf.constant(np.ones((4, 5), np.float32)), name="y")
    tf.io.write_graph(graph, folder, "defaulted.pb", as_text=False)
tf.compat.v1.disable_control_flow_v2()
with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
    weight = tf.constant(np.ones((4, 5), np.float32))
    made = tf.compat.v1.cond(tf.reduce_sum(x) > 0, lambda: x @ weight, lambda: tf.nn.relu(x @ weight))
    tf.nn.softmax(made, name="y")
    tf.io.write_graph(graph, folder, "switched.pb", as_text=False)
"""


@pytest.fixture(name="tensorflow_files", scope="session")
def _tensorflow_files(tmp_path_factory: pytest.TempPathFactory, start_warm_converter: Callable[[str], Any]) -> Path:
    if not (find_spec("tensorflow") and find_spec("tf2onnx")):
        pytest.skip("TensorFlow or tf2onnx is not installed")
    folder = tmp_path_factory.mktemp("tensorflow")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    words = start_warm_converter("dippm.frontends.tensorflow.worker").command("-c", _SCRIPT, str(folder))
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def run_beside_tensorflow(start_warm_converter: Callable[[str], Any]) -> Callable[[str], Any]:
    """Runs a script in a process that may use TensorFlow; what it prints at its end is read as JSON."""
    if not (find_spec("tensorflow") and find_spec("tf2onnx")):
        pytest.skip("TensorFlow or tf2onnx is not installed")

    def run(script: str) -> Any:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        words = start_warm_converter("dippm.frontends.tensorflow.worker").command("-c", script)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run
