"""Five architectures, built in a framework and saved by it: ``framework_models.py FRAMEWORK FOLDER``.

VGG16, ResNet-50, MobileNetV2, two LSTM layers and an encoder of BERT-small's size (4 layers, 512 wide), each as the
framework's own model collection or layers make them. A folder that is there stays.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTH, FEATURES, UNITS, CLASSES = 128, 64, 256, 10
VOCABULARY, HIDDEN, HEADS, LAYERS = 30522, 512, 8, 4
IMAGES = ("vgg16", "resnet50", "mobilenet_v2")


def write_tensorflow(folder: Path) -> None:
    """SavedModel folders."""
    import keras
    from keras import layers, ops

    def lstm() -> Any:
        x = keras.Input((LENGTH, FEATURES))
        y = layers.LSTM(UNITS)(layers.LSTM(UNITS, return_sequences=True)(x))
        return keras.Model(x, layers.Dense(CLASSES)(y))

    def bert() -> Any:
        ids = keras.Input((LENGTH,), dtype="int32")
        places = layers.Embedding(LENGTH, HIDDEN)(ops.arange(LENGTH))
        x = layers.LayerNormalization()(layers.Embedding(VOCABULARY, HIDDEN)(ids) + places)
        for _ in range(LAYERS):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(HEADS, HIDDEN // HEADS)(x, x))
            up = layers.Dense(4 * HIDDEN, activation="gelu")(x)
            x = layers.LayerNormalization()(x + layers.Dense(HIDDEN)(up))
        return keras.Model(ids, layers.Dense(HIDDEN, activation="tanh")(x[:, 0]))

    applications = keras.applications
    builders: dict[str, Callable[[], Any]] = {
        "vgg16": lambda: applications.VGG16(weights=None),
        "resnet50": lambda: applications.ResNet50(weights=None),
        "mobilenet_v2": lambda: applications.MobileNetV2(weights=None),
        "lstm": lstm,
        "bert": bert,
    }
    for name, build in builders.items():
        if not (folder / name).exists():
            build().export(str(folder / name), verbose=False)


def write_paddle(folder: Path) -> None:
    """Programs in Paddle 3's form, with their weights."""
    import paddle
    from paddle import nn
    from paddle.static import InputSpec

    class TwoLayers(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(FEATURES, UNITS, num_layers=2), nn.Linear(UNITS, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    class Encoder(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.norm = nn.Embedding(VOCABULARY, HIDDEN), nn.LayerNorm(HIDDEN)
            self.places = self.create_parameter([LENGTH, HIDDEN])
            layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, dropout=0.0, activation="gelu")
            self.blocks, self.pooler = nn.TransformerEncoder(layer, LAYERS), nn.Linear(HIDDEN, HIDDEN)

        def forward(self, ids: Any) -> Any:
            x = self.blocks(self.norm(self.tokens(ids) + self.places))
            return paddle.tanh(self.pooler(x[:, 0]))

    builders: dict[str, Callable[[], Any]] = {name: getattr(paddle.vision.models, name) for name in IMAGES}
    builders |= {"lstm": TwoLayers, "bert": Encoder}
    specs = dict.fromkeys(IMAGES, InputSpec([None, 3, 224, 224], "float32", "image"))
    specs["lstm"] = InputSpec([None, LENGTH, FEATURES], "float32", "x")
    specs["bert"] = InputSpec([None, LENGTH], "int64", "ids")
    for name, build in builders.items():
        if not (folder / name).exists():
            layer = build()
            layer.eval()
            paddle.jit.save(layer, str(folder / name / "model"), input_spec=[specs[name]])


def torch_models() -> dict[str, tuple[Callable[[], Any], Any]]:
    """For each architecture how PyTorch builds it, and a sample of one."""
    import torch
    from torch import nn

    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()
    import torchvision

    class TwoLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(FEATURES, UNITS, num_layers=2, batch_first=True)
            self.head = nn.Linear(UNITS, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.norm = nn.Embedding(VOCABULARY, HIDDEN), nn.LayerNorm(HIDDEN)
            self.places = nn.Parameter(torch.zeros(LENGTH, HIDDEN))
            layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, activation="gelu", batch_first=True)
            self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.pooler = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, ids: Any) -> Any:
            return torch.tanh(self.pooler(self.blocks(self.norm(self.tokens(ids) + self.places))[:, 0]))

    image = torch.zeros(2, 3, 224, 224)
    builders = {name: (getattr(torchvision.models, name), image) for name in IMAGES}
    return {
        **builders,
        "lstm": (TwoLayers, torch.zeros(2, LENGTH, FEATURES)),
        "bert": (Encoder, torch.zeros(2, LENGTH, dtype=torch.int64)),
    }


def write_onnx(folder: Path) -> None:
    """ONNX files as PyTorch's exporter writes them, weights inside, the batch left open."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name, (build, sample) in torch_models().items():
        path = folder / f"{name}.onnx"
        if not path.exists():
            axes = {"x": {0: "batch"}}
            torch.onnx.export(build().eval(), (sample,), path, dynamo=False, input_names=["x"], dynamic_axes=axes)


WRITERS = {"tensorflow": write_tensorflow, "paddle": write_paddle, "onnx": write_onnx}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
