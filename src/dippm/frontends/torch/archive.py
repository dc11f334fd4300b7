"""Bounded reading of zip archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

from dippm.errors import ModelReadError

__all__ = ["open_archive", "read_entry"]

_ENTRY_LIMIT = 2**30
_FREE_SIZE = 2**24  # an entry up to this size may be compressed as far as it likes
_RATIO_LIMIT = 200


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip file for reading.

    Raises:
        ModelReadError: ``model.truncated`` where its directory cannot be read.
    """
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as exc:
        raise ModelReadError(
            f"'{path}' begins as a zip archive and has no readable directory: {exc}.",
            code="model.truncated",
            cure="The file is cut short or damaged; save or copy it again.",
        ) from exc


def read_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read one entry, refusing one that unpacks to far more than it weighs.

    Raises:
        ModelReadError: ``model.truncated`` or ``model.too_large``.
    """
    info = archive.getinfo(name)
    is_bomb = info.file_size > _FREE_SIZE and info.file_size > _RATIO_LIMIT * max(info.compress_size, 1)
    if info.file_size > _ENTRY_LIMIT or is_bomb:
        raise ModelReadError(
            f"'{archive.filename}' holds '{name}', which unpacks from {info.compress_size} to {info.file_size} bytes.",
            code="model.too_large",
            cure="Files written by PyTorch are not compressed; this one is not what it seems.",
        )
    try:
        return archive.read(info)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError) as exc:
        raise ModelReadError(
            f"'{archive.filename}' cannot be read at '{name}': {exc}.",
            code="model.truncated",
            cure="The file is cut short or damaged; save or copy it again.",
        ) from exc
