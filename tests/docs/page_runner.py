"""Runs the examples of a page of documentation in order: Python in one interpreter, dippm's commands in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, int, str]]:
    """Language, number of the first line, and code of each example."""
    return [(found[1], text.count("\n", 0, found.start(2)), found[2]) for found in _BLOCK.finditer(text)]


def is_run(language: str, code: str) -> bool:
    """Whether an example is run: not where it installs something."""
    return language == "python" or not code.startswith("pip ")


def run(page: Path, programs: Path) -> None:
    """Run a page's examples in the working directory; what this folder holds goes before other programs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for language, line, code in blocks(page.read_text(encoding="utf-8")):
        if not is_run(language, code):
            continue
        if language == "python":
            # Tracebacks count lines from the top of the page.
            exec(compile("\n" * line + code, str(page), "exec"), names)  # noqa: S102 - our own pages
        else:
            command = ["/bin/bash", "-euo", "pipefail", "-c", code]
            subprocess.run(command, check=True, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(Path(sys.argv[1]), Path(sys.argv[2]))
