"""Runs the commands that the documentation shows and writes their real output below them.

    make demo && .venv/bin/python scripts/write_examples.py

A block is fenced as ``console``; a line that begins with ``$ dippm`` is run, and what stands below it, up to the next
such line or the end of the block, is replaced. ``...`` as the last line of an output keeps only as many lines as stood
above it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "demo" / "vgg16.onnx"
PAGES = ("README.md", "docs/cli.md", "docs/packing.md", "docs/kubernetes.md")
_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Rewrite every page."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    if not MODEL.is_file():
        sys.exit(f"There is no '{MODEL.relative_to(ROOT)}', which the examples predict. Run: make demo")
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        path.write_text(_BLOCK.sub(lambda block: _run_block(block[0]), text), encoding="utf-8")


def _run_block(block: str) -> str:
    parts = re.split(r"^(?=\$ )", block, flags=re.MULTILINE)
    return "".join(_run_part(part) if part.startswith("$ dippm ") else part for part in parts)


def _run_part(part: str) -> str:
    command, *old = part.rstrip("\n").split("\n")
    result = subprocess.run(
        [sys.executable, "-m", *shlex.split(command.removeprefix("$ "))],
        cwd=ROOT,
        env=os.environ | {"TTY_COMPATIBLE": "0" if "--json" in command else "1", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line.rstrip() for line in result.stdout.strip("\n").split("\n")]
    if old and old[-1] == "..." and len(lines) >= len(old):
        lines = [*lines[: len(old) - 1], "..."]
    return "\n".join([command, *lines]) + "\n"


if __name__ == "__main__":
    main()
