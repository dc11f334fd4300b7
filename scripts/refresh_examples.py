"""Run the commands that documentation shows with their output, and put down what they print now.

    python scripts/refresh_examples.py [--check] [PAGE ...]

It runs from the root of the repository, after ``make demo``; what a page shows with ``...`` is left as it is. With
``--check`` nothing is written, and the status is 1 where a page shows something else than its commands print.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGES = ("README.md", "docs/cli.md", "docs/packing.md", "docs/frameworks/diffusers.md")
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (dippm (?:predict|inspect|fits|max-batch|pack|devices)\b.*)$", re.MULTILINE)
_ELIDED = re.compile(r"^\s*\.\.\.$", re.MULTILINE)
_ERROR = "Error: "
# A terminal that is 80 columns wide and has no colours.
_TERMINAL = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


_DIPPM = (sys.executable, "-m", "dippm")


def refreshed(page: str, *, folder: Path, dippm: Sequence[str] = _DIPPM) -> str:
    """The page with what its commands print now.

    Args:
        page: The page's text.
        folder: Where the commands run.
        dippm: What starts dippm.
    """
    return _BLOCK.sub(lambda block: f"```console\n{''.join(_pieces(block[1], folder, dippm))}```", page)


def _pieces(block: str, folder: Path, dippm: Sequence[str]) -> Iterator[str]:
    """Every command of a block with what it prints now."""
    for piece in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
        command = _COMMAND.match(piece)
        if command is None or _ELIDED.search(piece):
            yield piece
            continue
        printed = _run(command[1], folder, dippm)
        if printed.startswith(_ERROR) and _ERROR not in piece:
            raise SystemExit(f"{command[1]} fails here, and the page stays as it is: {printed}")
        lines = [line.rstrip() for line in printed.rstrip().splitlines()]
        # A blank line between two commands stays.
        yield "\n".join([command[0], *lines, ""]) + ("\n" if piece.endswith("\n\n") else "")


def _run(command: str, folder: Path, dippm: Sequence[str]) -> str:
    """What a command shows on a terminal; one that fails shows why."""
    arguments = [*dippm, *shlex.split(command)[1:]]
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **_TERMINAL},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.stdout


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=[Path(page) for page in PAGES])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    is_stale = False
    for path in options.pages:
        shown = path.read_text(encoding="utf-8")
        printed = refreshed(shown, folder=Path.cwd())
        if printed == shown:
            continue
        is_stale = True
        if options.check:
            sys.stdout.writelines(
                difflib.unified_diff(shown.splitlines(True), printed.splitlines(True), str(path), "printed now")
            )
        else:
            path.write_text(printed, encoding="utf-8")
    return int(is_stale and options.check)


if __name__ == "__main__":
    sys.exit(main())
