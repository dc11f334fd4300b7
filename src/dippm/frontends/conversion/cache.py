"""Results of conversions, kept by the content of what was converted."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheEntry", "ConversionCache"]

_logger = logging.getLogger(__name__)

_ENDING = ".conversion"
_UNFINISHED = "unfinished-"
_STALE_S = 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheEntry:
    """A kept result.

    Args:
        model: The ONNX model without its large weights.
        converter_s: Seconds that the converter took.
        warnings: What it said of the result.
    """

    model: bytes
    converter_s: float
    warnings: tuple[str, ...] = ()


class ConversionCache:
    """A folder of results, one file each: a line of JSON, then the model.

    Several processes may use it at once. A file is whole from the moment it has its name, and what was read from it
    stays though another process drops it.

    Args:
        folder: Where they are; made when the first one is kept.
        most_entries: More than that are not kept: the oldest go.
        most_bytes: Nor more than that: what is larger by itself is not kept.
    """

    def __init__(self, folder: Path, *, most_entries: int = 512, most_bytes: int = 512 * 2**20) -> None:
        self._folder = folder
        self._most_entries = most_entries
        self._most_bytes = most_bytes

    def load(self, key: str) -> CacheEntry | None:
        """The result of a key; None where there is none or it is damaged."""
        path = self._path(key)
        try:
            head, _, model = path.read_bytes().partition(b"\n")
            about = json.loads(head)
            if hashlib.sha256(model).hexdigest() != about["sha256"]:
                raise ValueError("the model is not what was kept")
            warnings = tuple(str(each) for each in about["warnings"])
            found = CacheEntry(model=model, converter_s=float(about["converter_s"]), warnings=warnings)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            _logger.debug("the conversion kept in '%s' is damaged: %s", path, exc)
            return None
        with suppress(OSError):  # what was used last goes last
            os.utime(path)
        return found

    def save(self, key: str, entry: CacheEntry) -> None:
        """Keep a result, in place of one that is there, if there can be room for it.

        Raises:
            OSError: The folder cannot be written to.
        """
        about = {
            "converter_s": entry.converter_s,
            "warnings": entry.warnings,
            "sha256": hashlib.sha256(entry.model).hexdigest(),
        }
        content = json.dumps(about).encode() + b"\n" + entry.model
        if len(content) > self._most_bytes:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(prefix=_UNFINISHED, dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            Path(made).replace(self._path(key))
        except OSError:
            Path(made).unlink(missing_ok=True)
            raise
        self._drop_oldest(besides=self._path(key))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_ENDING}"

    def _drop_oldest(self, *, besides: Path) -> None:
        files = sorted(self._states(), reverse=True)
        newest = files[0][0] if files else 0.0
        count, size = 1, sum(nbytes for _, nbytes, path in files if path == besides)
        for changed_s, nbytes, path in files:
            is_left_behind = path.name.startswith(_UNFINISHED)
            if path == besides or (is_left_behind and newest - changed_s <= _STALE_S):
                continue  # the latter another process is about to finish
            count, size = count + 1, size + nbytes
            if is_left_behind or count > self._most_entries or size > self._most_bytes:
                with suppress(OSError):  # another process was faster
                    path.unlink()

    def _states(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, size and path of each file of this cache."""
        for path in self._folder.iterdir():
            if path.suffix == _ENDING or path.name.startswith(_UNFINISHED):
                with suppress(OSError):  # another process may just have dropped it
                    state = path.stat()
                    yield state.st_mtime, state.st_size, path
