"""Reads every model of timm and torchvision and the architectures of transformers, and writes which become a graph.

    nice .venv/bin/python scripts/report_model_coverage.py

The first time it takes ten minutes on a fast core, an hour or more on a slow one. What was read is noted in a file: a
run that was ended goes on where it stopped, and with ``--again`` the models whose names begin with a text, or those
that failed, are read anew.
"""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path

from dippm.evaluation.coverage_report import render_coverage
from dippm.evaluation.model_coverage import (
    ReadingNote,
    add_counted_macs,
    choose_one_of_each_family,
    library_models,
    read_models,
)

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("timm", "torchvision", "hf")


def main() -> None:
    """Read what has not been read, and write the report."""
    parser = argparse.ArgumentParser(description="Report which models of the libraries become a graph.")
    parser.add_argument("--notes", type=Path, default=ROOT / "build" / "model_coverage.jsonl")
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "reports" / "model_coverage.md")
    parser.add_argument("--again", metavar="PREFIX", help="read these anew; 'failed' for those without a graph")
    options = parser.parse_args()

    def is_wanted(note: ReadingNote) -> bool:
        if options.again is None:
            return False
        return not note.is_read if options.again == "failed" else note.name.startswith(options.again)

    names = [name for library in LIBRARIES for name in library_models(library)]
    notes = read_models(names, options.notes, is_wanted=is_wanted, progress=_show)
    counted = choose_one_of_each_family(notes.values())
    notes |= add_counted_macs(counted, options.notes, progress=_show)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "torchvision", "transformers"))
    environment = (
        f"Python {platform.python_version()}, {versions}; {os.cpu_count()} CPUs, {platform.machine()}. The seconds "
        "were taken beside other work on the same machine."
    )
    text = render_coverage(
        list(notes.values()), environment=environment, command="python scripts/report_model_coverage.py"
    )
    options.report.write_text(text, encoding="utf-8")


def _show(note: ReadingNote) -> None:
    print(f"{note.name}: {note.code or f'{note.nodes} operators'}, {note.read_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
