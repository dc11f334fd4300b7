"""Sources of models, importable by measuring processes too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(name="models")
def _models(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("measured_models")


@pytest.fixture(name="fake_nvml")
def _fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake library, in place of the real one."""
    from dippm.measuring import nvml

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    library = importlib.import_module("fake_nvml").FakeNvml()
    monkeypatch.setattr(nvml, "_load", lambda: library)
    return library
