"""What the pages show of commands is what the commands print."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "refresh_examples.py"))
refreshed = _SCRIPT["refreshed"]
_NEEDED = ("torch", "timm", "diffusers", "transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run: with the file of the demo and the examples beside it."""
    result = tmp_path_factory.mktemp("examples")
    (result / "examples").symlink_to(_ROOT / "examples")
    (result / "demo").mkdir()
    command = [sys.executable, _ROOT / "examples" / "write_vgg16.py", result / "demo" / "vgg16.onnx"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return result


@pytest.mark.skipif(any(find_spec(name) is None for name in _NEEDED), reason="needs named models")
@pytest.mark.parametrize("page", _SCRIPT["PAGES"])
def test_pages_show_what_commands_print(page: str, folder: Path, warm_models_python: Any) -> None:
    shown = (_ROOT / page).read_text(encoding="utf-8")
    # This page's commands start as a reader's do.
    started = {} if page == "docs/packing.md" else {"dippm": warm_models_python.command("dippm")}
    assert refreshed(shown, folder=folder, **started) == shown, "run python scripts/refresh_examples.py"


def test_what_is_stale_is_put_right_and_what_is_left_out_stays(folder: Path) -> None:
    def page(what: str) -> str:
        block = f"```console\n$ dippm devices none\n{what}\n$ other command\nkept\n```\n"
        return f"Text.\n\n{block}\n```sh\n$ dippm devices none\n```\n"

    fresh = refreshed(page("Error: stale"), folder=folder)
    assert "stale" not in fresh
    assert "No device is named 'none'" in fresh
    assert "$ other command\nkept\n```" in fresh
    assert refreshed(fresh, folder=folder) == fresh
    elided = page("first line\n...")
    assert refreshed(elided, folder=folder) == elided


def test_a_command_that_fails_only_here_changes_no_page(folder: Path) -> None:
    page = "```console\n$ dippm devices none\na device\n```\n"
    with pytest.raises(SystemExit, match=r"dippm devices none fails here.*No device is named 'none'"):
        refreshed(page, folder=folder)
