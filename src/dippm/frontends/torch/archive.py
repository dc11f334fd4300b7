"""Bounded reading of zip archives."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

from dippm.errors import ModelReadError

__all__ = ["DAMAGES", "EntryReader", "open_archive", "read_entry"]

#: What Python raises for an archive that is cut short, damaged, encrypted or packed in a way that it does not know.
DAMAGES = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)

_ENTRY_LIMIT = 2**30
_FREE_SIZE = 2**24  # an entry up to this size may be compressed as far as it likes
_RATIO_LIMIT = 200
_UNPACKED_LIMIT = 2**26  # what an archive may unpack to beyond its own size
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})  # PyTorch's own reader knows no other


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip file for reading.

    Raises:
        ModelReadError: ``model.truncated`` where its directory cannot be read.
    """
    try:
        return zipfile.ZipFile(path)
    except DAMAGES as exc:
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
        if info.compress_type not in _METHODS:
            raise NotImplementedError("it is packed in a way that PyTorch does not read")
        return archive.read(info)
    except DAMAGES as exc:
        raise ModelReadError(
            f"'{archive.filename}' cannot be read at '{name}': {exc}.",
            code="model.truncated",
            cure="The file is cut short or damaged; save or copy it again.",
        ) from exc


class EntryReader:
    """Reads entries of one archive and keeps count, so that many small bombs are refused as one large one is.

    PyTorch does not compress, so that what is read of an archive is never larger than the archive. Entries that were
    compressed afterwards may unpack to a little more.

    Args:
        archive: The open archive.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._read: set[str] = set()
        self._limit = _UNPACKED_LIMIT + (os.path.getsize(archive.filename) if archive.filename else 0)
        self._total = 0

    @property
    def names(self) -> list[str]:
        """Names of the entries, each once."""
        return list(dict.fromkeys(self._archive.namelist()))

    def size(self, name: str) -> int:
        """Bytes that an entry says it unpacks to."""
        return self._archive.getinfo(name).file_size

    def read(self, name: str) -> bytes:
        """Read an entry.

        Raises:
            ModelReadError: ``torch.archive_bomb`` where the entries read so far unpack to far more than the archive
                weighs; else as :func:`read_entry`.
        """
        if name not in self._read:
            self._read.add(name)
            self._total += self.size(name)
        if self._total > self._limit:
            raise ModelReadError(
                f"'{self._archive.filename}' unpacks to more than {self._limit} bytes, far more than it weighs.",
                code="torch.archive_bomb",
                cure="Files written by PyTorch are not compressed; this one is not what it seems.",
            )
        return read_entry(self._archive, name)
