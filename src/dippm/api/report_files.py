"""The files of an evaluation's report, and whether a folder takes any."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.evaluation.report_page import Section

__all__ = ["describe_file", "find_obstacle", "write_report"]


def write_report(
    folder: Path,
    words: str,
    *,
    title: str,
    sections: Sequence[Section],
    plots: Mapping[str, bytes],
    figures: Mapping[str, Any],
) -> tuple[Path, ...]:
    """Write a report as Markdown with its plots, as one HTML page, and its figures as JSON.

    Args:
        folder: Where they go; made where it is missing.
        words: What the files are named after.
        title: Title of the report.
        sections: Its parts.
        plots: Plot name to its SVG.
        figures: What goes into the JSON file.

    Returns:
        The Markdown page, the HTML page, the JSON file, the plots.

    Raises:
        UsageError: ``report.unwritable``.
    """
    from dippm.evaluation.report_page import render_html, render_markdown

    name = re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-")
    plot_files = {plot: f"{name}/{plot}.svg" for plot in plots}
    contents = {
        f"{name}.md": render_markdown(title, sections, plot_files).encode(),
        f"{name}.html": render_html(title, sections, plots).encode(),
        f"{name}.json": (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode(),
        **{plot_files[plot]: drawn for plot, drawn in plots.items()},
    }
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file_name, content in contents.items():
            (folder / file_name).write_bytes(content)
    except OSError as exc:
        raise UsageError(
            f"The report cannot be written to '{folder}': {exc.strerror or exc}.", code="report.unwritable"
        ) from exc
    return tuple(folder / file_name for file_name in contents)


def describe_file(data: str | os.PathLike[str]) -> str:
    """Name and hash of a file of labels; the name alone of a database."""
    path = Path(data)
    return f"{path.name}, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else path.name


def find_obstacle(folder: Path) -> str:
    """Why nothing can be written into a folder, which may be missing yet; ``""`` where it can. Nothing is made."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        return f"'{there}' is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"'{there}' may not be written to"
