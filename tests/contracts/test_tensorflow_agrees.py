"""The same five architectures from TensorFlow's files give the answer that PyTorch gives; VGG16 among exhaustive tests.

Keras counts one bias of an LSTM where PyTorch has two. The converter writes ONNX's operator, which has two as well, so
that the counts are equal in dippm and differ by four numbers per hidden unit and layer from what Keras says. TensorFlow
Lite is left out: it folds batch norms and drops weights of equal value when it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.graph import OpKind

pytest.importorskip("torch")
if not (find_spec("tensorflow") and find_spec("tf2onnx")):  # not imported: Paddle crashes when it comes second
    pytest.skip("TensorFlow or tf2onnx is not installed", allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("warm_conversions"),
]

IMAGE = (224, 224, 3)


def build_vgg16(keras: Any) -> Any:
    return keras.applications.VGG16(weights=None, classifier_activation=None)


def build_resnet50(keras: Any) -> Any:
    """With the stride in the 3x3 convolution and no biases, as torchvision has it."""
    layers = keras.layers

    def convolve(x: Any, filters: int, size: int, stride: int = 1) -> Any:
        x = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
        x = layers.Conv2D(filters, size, strides=stride, use_bias=False)(x)
        return layers.BatchNormalization(epsilon=1e-5)(x)

    image = keras.Input(IMAGE)
    x = layers.ReLU()(convolve(image, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, (blocks, filters) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            y = layers.ReLU()(convolve(x, filters, 1))
            y = layers.ReLU()(convolve(y, filters, 3, stride))
            y = convolve(y, 4 * filters, 1)
            x = convolve(x, 4 * filters, 1, stride) if block == 0 else x
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(image, layers.Dense(1000)(layers.GlobalAveragePooling2D()(x)))


def build_mobilenet_v2(keras: Any) -> Any:
    """Keras's own, but for the borders of strided convolutions.

    Keras pads them on two sides, PyTorch's model on all four. A border on two sides is a kernel of its own in PyTorch,
    which makes Keras's own model some tenth slower where the device is what counts.
    """
    layers = keras.layers

    def with_even_borders(layer: Any) -> Any:
        settings = layer.get_config()
        if isinstance(layer, layers.ZeroPadding2D):
            return layers.ZeroPadding2D(1, name=layer.name)
        if type(layer) is layers.Conv2D and layer.strides == (2, 2):
            strided = layers.Conv2D.from_config({**settings, "padding": "valid"})
            return keras.Sequential([layers.ZeroPadding2D(1), strided], name=f"{layer.name}_with_border")
        return type(layer).from_config(settings)

    original = keras.applications.MobileNetV2(weights=None, classifier_activation=None)
    return keras.models.clone_model(original, clone_function=with_even_borders)


def build_lstm(keras: Any) -> Any:
    sequence = keras.Input((128, 64))
    x = keras.layers.LSTM(256, return_sequences=True)(sequence)
    return keras.Model(sequence, keras.layers.Dense(10)(keras.layers.LSTM(256)(x)))


def build_bert(keras: Any) -> Any:
    layers = keras.layers

    class Places(layers.Layer):  # type: ignore[misc]
        """Adds what was learned of each place."""

        def build(self, shape: Any) -> None:
            self.places = self.add_weight(shape=shape[1:])

        def call(self, x: Any) -> Any:
            return x + self.places

    def normalize(x: Any) -> Any:
        return layers.LayerNormalization(epsilon=1e-12)(x)

    tokens = keras.Input((128,), dtype="int32", name="input_ids")
    x = normalize(Places()(layers.Embedding(30522, 512)(tokens)))
    for _ in range(4):
        x = normalize(x + layers.MultiHeadAttention(8, 64)(x, x))
        y = layers.Dense(512)(layers.Activation("gelu")(layers.Dense(2048)(x)))
        x = normalize(x + y)
    return keras.Model(tokens, layers.Dense(512, activation="tanh")(x[:, 0]))


SAVED: Mapping[str, tuple[Callable[[Any], Any], str, Callable[[Any, Path], Any]]] = {
    "vgg16": (build_vgg16, "vgg16", lambda model, path: model.export(path, verbose=False)),
    "resnet50": (build_resnet50, "resnet50.keras", lambda model, path: model.save(path)),
    "mobilenet_v2": (build_mobilenet_v2, "mobilenet_v2.h5", lambda model, path: model.save(path)),
    "lstm": (build_lstm, "lstm", lambda model, path: model.export(path, verbose=False)),
    "bert": (build_bert, "bert", lambda model, path: model.export(path, verbose=False)),
}

# Networks answer in amp: they read what runs in place, as PyTorch's rectifiers do and those of a file do not.
_SLACK = {"fp32": 0.05, "amp": 0.06}


# VGG16's file has half a gigabyte; a small network of its layers stands for it below.
_HEAVY = {"vgg16": [pytest.mark.exhaustive]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=_HEAVY.get(name, [])) for name in SAVED])
def test_tensorflow_and_pytorch_agree(name: str, tmp_path: Path, reference_models: Mapping[str, Any]) -> None:
    import keras

    build, file, save = SAVED[name]
    model = build(keras)
    counted = sum(int(weight.shape.num_elements()) for weight in model.trainable_weights)
    save(model, tmp_path / file)
    reference = reference_models[name]
    from_torch = dippm.load(reference.build(), input=reference.input)
    from_tensorflow = dippm.load(tmp_path / file)
    assert from_tensorflow.framework == "tensorflow"
    assert from_tensorflow.unsupported_ops == {}
    assert from_tensorflow.parameter_count == from_torch.parameter_count
    assert from_torch.parameter_count - counted == (2 * 4 * 256 if name == "lstm" else 0)
    for precision in _SLACK:
        for batch in (1, 32):
            ours, theirs = (
                dippm.predict(graph, batch=batch, device="A100", precision=precision)
                for graph in (from_torch, from_tensorflow)
            )
            assert theirs.macs == pytest.approx(ours.macs, rel=0.01)
            assert theirs.latency_ms == pytest.approx(ours.latency_ms, rel=_SLACK[precision]), (precision, batch)


def test_layers_of_vgg_agree(tmp_path: Path) -> None:
    """Convolutions with biases and activations inside, and a dense layer on pixels in Keras's order."""
    import keras
    from torch import nn

    layers = keras.layers
    image = keras.Input((32, 32, 3))
    x = layers.MaxPooling2D()(layers.Conv2D(16, 3, padding="same", activation="relu")(image))
    x = layers.Flatten()(layers.Conv2D(24, 3, padding="same", activation="relu")(x))
    keras.Model(image, layers.Dense(10)(x)).export(tmp_path / "small", verbose=False)
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, padding=1)
    dense = nn.Linear(24 * 16 * 16, 10)
    module = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), dense)
    ours, theirs = dippm.load(module, input=(3, 32, 32)), dippm.load(tmp_path / "small")
    assert theirs.unsupported_ops == {}
    assert theirs.parameter_count == ours.parameter_count
    for precision in _SLACK:
        for batch in (1, 1024):
            expected, found = (
                dippm.predict(graph, batch=batch, device="A100", precision=precision) for graph in (ours, theirs)
            )
            assert found.macs == expected.macs
            assert found.latency_ms == pytest.approx(expected.latency_ms, rel=_SLACK[precision]), (precision, batch)


@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_convnext_of_keras_and_of_torchvision_agree(tmp_path: Path) -> None:
    """Keras's own subtracts the mean of its images and ends in a softmax, and torchvision's does not."""
    import keras

    keras.applications.ConvNeXtTiny(weights=None).save(tmp_path / "convnext.keras")
    theirs, ours = dippm.load(tmp_path / "convnext.keras"), dippm.load("torchvision:convnext_tiny")
    counts = [sum(node.kind is not OpKind.VIEW for node in graph.nodes) for graph in (theirs, ours)]
    assert counts[0] == pytest.approx(counts[1], abs=4)
    for batch in (1, 32):
        expected, found = (dippm.predict(graph, batch=batch, device="A100") for graph in (ours, theirs))
        assert found.latency_ms == pytest.approx(expected.latency_ms, rel=0.05), batch
