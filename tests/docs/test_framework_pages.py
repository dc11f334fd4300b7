"""Every example on the pages about frameworks runs as a reader would run it, from the first to the last."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

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


@pytest.fixture(name="programs")
def _programs(warm_models_python: Any, tmp_path: Path) -> Path:
    """A folder that holds a dippm which starts at once."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "dippm").write_text(f'#!/bin/sh\nexec {shlex.join(warm_models_python.command("dippm"))} "$@"\n')
    (folder / "dippm").chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_examples_run_in_order(page: Path, programs: Path, warm_models_python: Any, tmp_path: Path) -> None:
    for name in _NEEDED[page.stem]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # A model that a page asks for again is read from the cache, as a reader's is.
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "DIPPM_CACHE": str(tmp_path / "kept"),
    }
    command = warm_models_python.command("page_runner", str(page), str(programs))
    folder = tmp_path / "reader"
    folder.mkdir()
    result = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(_HERE)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
