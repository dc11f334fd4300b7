"""Where dippm keeps between runs what takes long to make."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FOLDER_VARIABLE", "cache_folder"]

#: Names the folder; set and empty, nothing is kept.
FOLDER_VARIABLE = "DIPPM_CACHE"


def cache_folder(part: str) -> Path | None:
    """The folder of one kind of kept things, which need not exist; None where nothing is to be kept.

    Args:
        part: Name of the kind, such as ``"named-graphs"``.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given is not None:
        return Path(given) / part if given else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "dippm" / part
    except RuntimeError:  # a user without a home
        return None
