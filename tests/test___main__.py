"""``python -m dippm``."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest


@pytest.mark.parametrize(
    ("words", "status", "said"), [(["--version"], 0, f"dippm {version('dippm')}\n"), (["frob"], 2, "")]
)
def test_it_is_the_command_with_its_status(words: list[str], status: int, said: str) -> None:
    found = subprocess.run([sys.executable, "-m", "dippm", *words], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (status, said)
