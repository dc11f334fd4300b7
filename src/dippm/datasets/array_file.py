"""Named arrays in one file that appears whole or not at all: what building samples keeps."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.errors import UsageError

__all__ = ["read_arrays", "write_arrays"]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of a file, or None where there is none or it is cut off or damaged: it is made again then."""
    try:
        # NumPy leaves a file open that it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, zipfile.BadZipFile):
        return None


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays beside their place and rename.

    Raises:
        UsageError: ``samples.unwritable``.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        unfinished.replace(path)
    except OSError as exc:
        raise UsageError(
            f"The samples cannot be written to '{path}': {exc.strerror or exc}.",
            code="samples.unwritable",
            cure="Give a cache folder on a disk with room.",
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
