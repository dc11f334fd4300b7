"""Models saved by Paddle itself, once for all tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def paddle() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("paddle2onnx", reason="paddle2onnx is not installed: pip install 'dippm[paddle]'")
        return pytest.importorskip("paddle", reason="Paddle is not installed: pip install 'dippm[paddle]'")


@pytest.fixture(scope="session")
def network(paddle: Any) -> Any:
    """A small convolutional network; 1,450 parameters and 16 numbers that a batch norm keeps."""
    nn = paddle.nn
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1),
        nn.BatchNorm2D(8),
        nn.Hardswish(),
        nn.MaxPool2D(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


@pytest.fixture(scope="session")
def saved(paddle: Any, network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as Paddle 3 saves it: a folder with ``net.json`` and ``net.pdiparams``."""
    return _save(paddle, network, tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="session")
def saved_old(paddle: Any, network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as Paddle 2 saves it: a folder with ``net.pdmodel`` and ``net.pdiparams``."""
    with paddle.pir_utils.DygraphOldIrGuard():
        return _save(paddle, network, tmp_path_factory.mktemp("saved_old"))


def _save(paddle: Any, network: Any, folder: Path) -> Path:
    network.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = paddle.static.InputSpec([None, 3, 8, 8], "float32", "image")
        paddle.jit.save(network, str(folder / "net"), input_spec=[spec])
    return folder


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions that these tests share: each takes seconds."""
    monkeypatch.setenv("DIPPM_CACHE", str(shared_cache))


@pytest.fixture
def fresh_cache(_cache: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is converted yet."""
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path_factory.mktemp("fresh_cache")))
