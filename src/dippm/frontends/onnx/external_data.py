"""Weights kept beside the model file: checked, located, and not opened unless a shape depends on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dippm.errors import ModelReadError
from dippm.frontends.onnx.skeleton import KEPT_INTEGER_BYTES

__all__ = ["ExternalFiles"]


class ExternalFiles:
    """The files beside one model.

    Args:
        folder: The model file's folder; None for a model given as bytes, whose files cannot be found.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else Path(os.path.realpath(folder))
        self._sizes: dict[str, int] = {}
        self.missing: set[str] = set()

    def check(self, location: str, *, tensor: str) -> None:
        """Refuse a location outside the model's folder and remember a file that is absent.

        Raises:
            ModelReadError: ``onnx.external_path``.
        """
        if location in self._sizes:
            return
        parts = location.replace("\\", "/").split("/")
        is_absolute = os.path.isabs(location) or parts[0] == "" or ":" in parts[0]
        if is_absolute or ".." in parts or not location or "\0" in location:
            raise _refused(location, tensor)
        size = -1
        if self._folder is not None:
            path = Path(os.path.realpath(self._folder / location))
            if not path.is_relative_to(self._folder):
                raise _refused(location, tensor)
            size = path.stat().st_size if path.is_file() else -1
            if size < 0:
                self.missing.add(location)
        self._sizes[location] = size

    def read_small(self, entries: Mapping[str, str], *, nbytes: int) -> bytes | None:
        """The bytes of a small tensor, None where they are absent, elsewhere or too many."""
        location = entries.get("location", "")
        size = self._sizes.get(location, -1)
        try:
            offset = int(entries.get("offset") or 0)
        except ValueError:
            return None
        if self._folder is None or not 0 < nbytes <= KEPT_INTEGER_BYTES or offset < 0 or offset + nbytes > size:
            return None
        try:
            with (self._folder / location).open("rb") as file:
                file.seek(offset)
                return file.read(nbytes)
        except OSError:
            return None


def _refused(location: str, tensor: str) -> ModelReadError:
    return ModelReadError(
        f"The ONNX file keeps tensor '{tensor}' in '{location[:200]}', which lies outside the model's folder.",
        code="onnx.external_path",
        cure="Put the data file beside the model and store its name alone as the location.",
    )
