"""The same architecture from Paddle, saved by Paddle, gives the answer of its PyTorch twin."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    paddle = pytest.importorskip("paddle", reason="Paddle is not installed: pip install 'dippm[paddle]'")
    pytest.importorskip("paddle2onnx", reason="paddle2onnx is not installed: pip install 'dippm[paddle]'")

# Paddle's own code warns as it saves.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_conversions"),
]

BATCHES = (1, 32)
PRECISIONS = ("fp32", "amp")


def _image() -> Any:
    return paddle.static.InputSpec([None, 3, 224, 224], "float32", "image")


def _lstm() -> Any:
    class TwoLayerLSTM(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = paddle.nn.LSTM(64, 256, num_layers=2)
            self.head = paddle.nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return TwoLayerLSTM()


def _bert() -> Any:
    nn, functional = paddle.nn, paddle.nn.functional
    length, hidden, heads, layers = 128, 512, 8, 4

    class Block(nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
            self.norm_1, self.norm_2 = nn.LayerNorm(hidden, epsilon=1e-12), nn.LayerNorm(hidden, epsilon=1e-12)

        def forward(self, x: Any) -> Any:
            query, key, value = (
                layer(x).reshape([0, 0, heads, hidden // heads]) for layer in (self.query, self.key, self.value)
            )
            mixed = functional.scaled_dot_product_attention(query, key, value)
            x = self.norm_1(x + self.out(mixed.reshape([0, 0, hidden])))
            return self.norm_2(x + self.down(functional.gelu(self.up(x))))

    class Encoder(nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(30522, hidden)
            self.places = self.create_parameter([length, hidden])
            self.norm = nn.LayerNorm(hidden, epsilon=1e-12)
            self.blocks = nn.LayerList([Block() for _ in range(layers)])
            self.pooler = nn.Linear(hidden, hidden)

        def forward(self, input_ids: Any) -> Any:
            x = self.norm(self.tokens(input_ids) + self.places)
            for block in self.blocks:
                x = block(x)
            return paddle.tanh(self.pooler(x[:, 0]))

    return Encoder()


def _save(layer: Any, folder: Path, spec: Any) -> Path:
    layer.eval()
    paddle.jit.save(layer, str(folder / "model"), input_spec=[spec])
    return folder / "model.json"


def _vgg(folder: Path) -> dippm.Graph:
    _save(paddle.vision.models.vgg16(), folder, _image())
    return dippm.load(folder)


def _resnet(folder: Path) -> dippm.Graph:
    return dippm.load(_save(paddle.vision.models.resnet50(), folder, _image()))


def _mobilenet(folder: Path) -> dippm.Graph:
    """In the form of Paddle 2."""
    with paddle.pir_utils.DygraphOldIrGuard():
        _save(paddle.vision.models.mobilenet_v2(), folder, _image())
    assert not (folder / "model.json").exists()
    return dippm.load(folder / "model.pdmodel")


def _lstm_by_its_weights(folder: Path) -> dippm.Graph:
    path = _save(_lstm(), folder, paddle.static.InputSpec([None, 128, 64], "float32", "x"))
    return dippm.load(path.with_suffix(".pdiparams"))


def _bert_in_memory(folder: Path) -> dippm.Graph:
    return dippm.load(_bert(), input={"input_ids": ((128,), "int64")})


SAVED: dict[str, Callable[[Path], dippm.Graph]] = {
    "vgg16": _vgg,
    "resnet50": _resnet,
    "mobilenet_v2": _mobilenet,
    "lstm": _lstm_by_its_weights,
    "bert": _bert_in_memory,
}


@pytest.mark.parametrize("name", SAVED)
def test_paddle_and_pytorch_agree(name: str, reference_models: Any, tmp_path: Path) -> None:
    reference = reference_models[name]
    module = reference.build()
    ours = dippm.load(module, input=reference.input)
    theirs = SAVED[name](tmp_path)
    assert theirs.framework == "paddle"
    assert not theirs.unsupported_ops
    assert theirs.parameter_count == ours.parameter_count == sum(p.numel() for p in module.parameters())
    for precision in PRECISIONS:
        for batch in BATCHES:
            wanted, found = (
                dippm.predict(graph, batch=batch, device="A100-SXM4-40GB", precision=precision)
                for graph in (ours, theirs)
            )
            assert found.macs == pytest.approx(wanted.macs, rel=0.01)
            assert found.latency_ms == pytest.approx(wanted.latency_ms, rel=0.05), (precision, batch)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "densenet121", "squeezenet1_1", "shufflenet_v2_x0_5"])
def test_more_models_of_both_libraries_agree(name: str, tmp_path: Path) -> None:
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()
    torchvision = pytest.importorskip("torchvision")
    ours = dippm.load(torchvision.models.get_model(name, weights=None).eval(), input=(3, 224, 224))
    theirs = dippm.load(_save(getattr(paddle.vision.models, name)(), tmp_path, _image()))
    assert theirs.parameter_count == ours.parameter_count
    for precision in PRECISIONS:
        wanted, found = (
            dippm.predict(graph, batch=32, device="A100-SXM4-40GB", precision=precision) for graph in (ours, theirs)
        )
        assert found.macs == pytest.approx(wanted.macs, rel=0.01)
        assert found.latency_ms == pytest.approx(wanted.latency_ms, rel=0.05), precision
