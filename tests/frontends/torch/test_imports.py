"""The frontend is light to import and says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dippm.errors import MissingExtraError
from dippm.frontends import torch as frontend
from dippm.frontends.inputs import InputShapes


def test_importing_the_frontends_imports_no_torch() -> None:
    code = (
        "import sys, dippm.frontends, dippm.frontends.torch, dippm.frontends.torch.operators, dippm.frontends.zoo\n"
        "heavy = {'torch', 'torchvision', 'timm', 'transformers', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_most_models_imports_no_compiler() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys, torch\n"
        "from torch import nn\n"
        "from dippm.frontends.inputs import parse_input_shapes\n"
        "from dippm.frontends.torch import read_module\n"
        "layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(2),\n"
        "layers += nn.LayerNorm(9), nn.TransformerEncoderLayer(9, 3, batch_first=True), nn.LSTM(9, 4)\n"
        "read_module(nn.Sequential(*layers), input=parse_input_shapes('3,14,14'))\n"
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "find_spec", lambda _name: None)
    for call in (
        lambda: frontend.read_module(object(), input=InputShapes()),  # type: ignore[arg-type]
        lambda: frontend.read_torch_file("x.pt", input=InputShapes()),
    ):
        with pytest.raises(MissingExtraError) as caught:
            call()
        assert caught.value.extra == "torch"
        assert "pip install" in str(caught.value)
