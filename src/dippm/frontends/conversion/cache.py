"""Results of conversions, kept by the content of what was converted."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheEntry", "ConversionCache"]

_logger = logging.getLogger(__name__)

_MODEL, _ABOUT = "model.onnx", "about.json"
_UNFINISHED = "unfinished-"
_STALE_S = 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheEntry:
    """A kept result.

    Args:
        path: The ONNX file without its large weights.
        converter_s: Seconds that the converter took.
    """

    path: Path
    converter_s: float


class ConversionCache:
    """A folder of results, each a folder of its own that is complete from the moment it has its name.

    Args:
        folder: Where they are; made when the first one is kept.
        most_entries: More than that are not kept: the oldest go.
        most_bytes: Nor more than that.
    """

    def __init__(self, folder: Path, *, most_entries: int = 512, most_bytes: int = 512 * 2**20) -> None:
        self._folder = folder
        self._most_entries = most_entries
        self._most_bytes = most_bytes

    def load(self, key: str) -> CacheEntry | None:
        """The result of a key; None where there is none or it is damaged."""
        entry = self._folder / key
        try:
            about = json.loads((entry / _ABOUT).read_text(encoding="utf-8"))
            digest = hashlib.sha256((entry / _MODEL).read_bytes()).hexdigest()
            if digest != about["sha256"]:
                raise ValueError("the model is not what was kept")
            found = CacheEntry(path=entry / _MODEL, converter_s=float(about["converter_s"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            _logger.debug("the conversion kept in '%s' is damaged: %s", entry, exc)
            return None
        with suppress(OSError):  # what was used last goes last
            os.utime(entry)
        return found

    def save(self, key: str, model: bytes, *, converter_s: float) -> CacheEntry:
        """Keep a result, in place of one that is there.

        Raises:
            OSError: The folder cannot be written to.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        entry = self._folder / key
        made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        try:
            write_entry(made, model, converter_s=converter_s)
            if self.load(key) is None:
                shutil.rmtree(entry, ignore_errors=True)
                with suppress(OSError):  # another process was faster
                    made.rename(entry)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        self._drop_oldest(besides=key)
        found = self.load(key)
        if found is None:
            raise OSError(f"'{entry}' could not be kept")
        return found

    def _drop_oldest(self, *, besides: str) -> None:
        entries = sorted(self._states(), reverse=True)
        newest = entries[0][0] if entries else 0.0
        count, size = 1, 0
        for changed_s, nbytes, path in entries:
            if path.name == besides:
                size += nbytes
                continue
            is_left_behind = path.name.startswith(_UNFINISHED)
            if is_left_behind and newest - changed_s <= _STALE_S:
                continue  # another process is about to finish it
            count, size = count + 1, size + nbytes
            if is_left_behind or count > self._most_entries or size > self._most_bytes:
                shutil.rmtree(path, ignore_errors=True)

    def _states(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, size and path of each entry."""
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process may just have dropped it
                yield path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir()), path


def write_entry(folder: Path, model: bytes, *, converter_s: float) -> CacheEntry:
    """Write a result into an empty folder."""
    (folder / _MODEL).write_bytes(model)
    about = {"converter_s": converter_s, "sha256": hashlib.sha256(model).hexdigest()}
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return CacheEntry(path=folder / _MODEL, converter_s=converter_s)
