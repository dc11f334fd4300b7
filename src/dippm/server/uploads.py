"""Files of clients: on disk while their request runs, and never longer."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from dippm.server.errors import ServiceError

__all__ = ["EXTENSIONS", "IncomingFile", "UploadStore"]

#: Extensions that are taken over from a client's file name; nothing else of the name ever reaches the disk.
EXTENSIONS = (".onnx", ".pt2", ".pt", ".pth", ".tflite", ".keras", ".h5", ".pb", ".pdmodel", ".json", ".zip")

_BLOCK_BYTES = 2**20
_LONGEST_NAME = 120
_STORE_FACTOR = 16
_SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class UploadStore:
    """Where uploads lie, with a bound on what all of them take.

    Args:
        folder: Folder of the service.
        max_upload_mb: Largest upload, MiB; all together take at most sixteen times as much.
    """

    def __init__(self, folder: Path, *, max_upload_mb: int) -> None:
        self._folder = folder
        self.most_bytes = max_upload_mb * 2**20
        self._left = _STORE_FACTOR * self.most_bytes

    @contextmanager
    def receive(self) -> Iterator[IncomingFile]:
        """A file to be written in a folder of its own, which is gone when the request is."""
        folder = Path(tempfile.mkdtemp(prefix="upload-", dir=self._folder))
        incoming = IncomingFile(folder, self)
        try:
            yield incoming
        finally:
            incoming.close()
            self._left += incoming.size
            shutil.rmtree(folder, ignore_errors=True)

    def claim(self, size: int) -> None:
        """Take space for so many bytes.

        Raises:
            ServiceError: ``upload.no_space``.
        """
        if size > self._left:
            raise no_space()
        self._left -= size


class IncomingFile:
    """One upload while it comes in."""

    def __init__(self, folder: Path, store: UploadStore) -> None:
        self._folder = folder
        self._store = store
        self._stream: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._block = bytearray()
        self.size = 0
        self.name = ""
        self.path: Path | None = None

    @property
    def content(self) -> str:
        """Hash of what was written."""
        return self._hash.hexdigest()

    def open(self, name: str) -> None:
        """Begin the file.

        Args:
            name: The client's name of it: its extension says what to expect, and it stands in messages.

        Raises:
            ServiceError: ``upload.extension``.
        """
        # Whatever the client's system takes for a path, its last part is the name.
        last = PurePosixPath(PureWindowsPath(name).name).name
        self.name = "".join(each if each.isprintable() else "?" for each in last)[-_LONGEST_NAME:] or "upload"
        extension = PurePosixPath(self.name).suffix.lower()
        if extension not in EXTENSIONS:
            raise ServiceError(
                f"A file with the extension '{extension}' is not taken. Got '{self.name}'.",
                code="upload.extension",
                status=415,
                cure=f"Send one of {', '.join(EXTENSIONS)}.",
            )
        self.path = self._folder / f"upload{extension}"
        self._stream = self.path.open("xb", buffering=0)

    async def write(self, data: bytes) -> None:
        """Add to the file.

        Raises:
            ServiceError: ``upload.too_large``, ``upload.no_space``.
        """
        if self.size + len(data) > self._store.most_bytes:
            raise ServiceError(
                f"The file is larger than {self._store.most_bytes // 2**20:,} MiB.",
                code="upload.too_large",
                status=413,
                cure="Leave the weights out where the format allows it, or ask dippm on your own machine.",
            )
        self._store.claim(len(data))
        self.size += len(data)
        self._block += data
        if len(self._block) >= _BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Bring what was added to the disk, without holding up other requests.

        Raises:
            ServiceError: ``upload.no_space``.
        """
        block, self._block = self._block, bytearray()
        if block and self._stream is not None:
            try:
                await asyncio.to_thread(self._append, self._stream, bytes(block))
            except OSError as exc:
                if exc.errno in _SPACE_ERRORS:
                    raise no_space() from exc
                raise

    def close(self) -> None:
        """End the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _append(self, stream: BinaryIO, block: bytes) -> None:
        self._hash.update(block)
        view = memoryview(block)
        while view:
            view = view[stream.write(view) :]


def no_space() -> ServiceError:
    """The refusal of an upload for which there is no room now."""
    return ServiceError(
        "There is no room for another upload now.",
        code="upload.no_space",
        status=503,
        cure="Try again later.",
        headers={"Retry-After": "5"},
    )
