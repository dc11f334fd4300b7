"""What tests of the workers of several frameworks share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def answer_of_module(tmp_path: Path) -> Callable[[str, dict[str, Any]], Any]:
    """Runs a worker as a module on a request, packages of the temporary folder first; gives its reply."""

    def answer(module: str, given: dict[str, Any]) -> Any:
        asked, reply = tmp_path / "request.json", tmp_path / "reply.json"
        asked.write_text(json.dumps({**given, "reply": str(reply)}))
        places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, str(asked)],
            env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(reply.read_text())

    return answer
