"""Every example on the pages about frameworks runs as a reader would run it, from the first to the last."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PAGES = sorted((_HERE.parents[1] / "docs" / "frameworks").glob("*.md"))
_NEEDED = {
    "diffusers": ("torch", "transformers", "diffusers"),
    "onnx": ("torch", "onnxruntime"),
    "paddle": ("paddle", "paddle2onnx"),
    "pytorch": ("torch", "torchvision", "transformers"),
    "tensorflow": ("tensorflow", "tf2onnx", "keras"),
}
_LIMIT_S = 280


def test_pages_are_known() -> None:
    assert "onnx" in {page.stem for page in _PAGES} <= set(_NEEDED)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_page_has_examples_of_both_kinds(page: Path) -> None:
    languages = [line.removeprefix("```") for line in page.read_text(encoding="utf-8").splitlines() if "```" in line]
    assert {"python", "sh"} <= set(languages)


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_examples_run_in_order(page: Path, tmp_path: Path) -> None:
    for name in _NEEDED[page.stem]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(_HERE / "page_runner.py"), str(page)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
