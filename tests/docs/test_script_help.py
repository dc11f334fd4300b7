"""Scripts and examples say how they are called, and do nothing then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SCRIPTS = [*sorted(_ROOT.glob("examples/*.py")), *sorted(_ROOT.glob("scripts/*.py"))]


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda script: script.stem)
def test_help_is_asked_for(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith(f"usage: {script.name}")
    assert list(tmp_path.iterdir()) == []
