"""Measured tables as files of comma-separated values."""

from __future__ import annotations

import csv
from pathlib import Path

from dippm.errors import UsageError

__all__ = ["PUBLISHED_CURE", "existing_table", "read_records"]

PUBLISHED_CURE = "Name data/published of the repository."
"""What to do where a published table is missing."""


def existing_table(path: Path, *, cure: str = "Set DIPPM_DATA.") -> Path:
    """The path of a file that is there.

    Raises:
        UsageError: ``data.missing``.
    """
    if not path.is_file():
        raise UsageError(f"There is no table '{path}'.", code="data.missing", cure=cure)
    return path


def read_records(path: Path, *, cure: str = "Set DIPPM_DATA.") -> list[dict[str, str]]:
    """The rows of a table, each by the names of its columns.

    Raises:
        UsageError: ``data.missing``.
    """
    with existing_table(path, cure=cure).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
