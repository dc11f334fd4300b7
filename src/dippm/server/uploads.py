"""Files of clients: on disk while their request runs, and never longer."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from dippm.errors import FULL_DISK_ERRORS
from dippm.server.errors import ServiceError

__all__ = [
    "EXTENSIONS", "READ_EXTENSIONS", "RETRY_AFTER", "UNPACKED_FACTOR", "IncomingFile", "UploadStore",
    "refusal_of_moment",
]  # fmt: skip

#: Extensions of the files that are read.
READ_EXTENSIONS = (".onnx", ".pt2", ".pt", ".pth", ".tflite", ".pdmodel", ".json", ".zip")

#: Extensions that are taken over from a client's file name; nothing else of the name ever reaches the disk. Keras files
#: and frozen graphs are told why they are not read; a .pb may be ONNX, too.
EXTENSIONS = (*READ_EXTENSIONS, ".keras", ".h5", ".pb")

#: Header that says when an upload for which there is no room, or no open file, may be tried again.
RETRY_AFTER = {"Retry-After": "5"}

#: An archive may unpack to this many times the largest upload.
UNPACKED_FACTOR = 4

_BLOCK_BYTES = 2**20
_LONGEST_NAME = 120
_STORE_FACTOR = 16
# Nothing that deflate packs becomes smaller than one byte for so many.
_MOST_DEFLATED = 1032
# A file system, too, may have no room for a file that the service would take.
_SPACE_ERRORS = FULL_DISK_ERRORS | {errno.EFBIG}
_OPEN_FILES_ERRORS = frozenset({errno.EMFILE, errno.ENFILE})


class UploadStore:
    """Where uploads lie, with a bound on what all of them take.

    Args:
        folder: Folder of the service.
        max_upload_mb: Largest upload, MiB. All together take at most sixteen times as much, and four times as much for
            each worker, so that each can unpack an archive.
        workers: How many there are.
    """

    def __init__(self, folder: Path, *, max_upload_mb: int, workers: int) -> None:
        self._folder = folder
        self.most_bytes = max_upload_mb * 2**20
        self._left = (_STORE_FACTOR + UNPACKED_FACTOR * workers) * self.most_bytes

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[IncomingFile]:
        """A file to be written in a folder of its own, which is gone when the request is and no worker reads it.

        Raises:
            ServiceError: ``upload.no_space``, ``upload.open_files``.
        """
        with _refusing_for_now():
            folder = Path(tempfile.mkdtemp(prefix="upload-", dir=self._folder))
        incoming = IncomingFile(folder, self)
        try:
            yield incoming
        finally:
            await incoming.let_go()

    def claim(self, size: int) -> None:
        """Take space for so many bytes.

        Raises:
            ServiceError: ``upload.no_space``.
        """
        if size > self._left:
            raise _no_space()
        self._left -= size

    def give_back(self, size: int) -> None:
        """Give back space that was taken."""
        self._left += size


class IncomingFile:
    """One upload while it comes in."""

    def __init__(self, folder: Path, store: UploadStore) -> None:
        self._folder = folder
        self._store = store
        self._stream: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._block = bytearray()
        self._claimed = 0
        self._users = 1
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
            ServiceError: ``upload.extension``, ``upload.no_space``, ``upload.open_files``.
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
                cure=f"Send one of {', '.join(READ_EXTENSIONS)}.",
            )
        self.path = self._folder / f"upload{extension}"
        with _refusing_for_now():
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
        self._claim(len(data))
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
            with _refusing_for_now():
                await asyncio.to_thread(self._append, self._stream, bytes(block))

    def close(self) -> None:
        """End the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Keep the file while a worker is to read it, though its own request may be gone."""
        self._users += 1
        try:
            yield
        finally:
            await self.let_go()

    def claim_unpacked(self) -> None:
        """Take the space that the file may need beside itself, now that a worker begins to read it.

        Raises:
            ServiceError: ``upload.no_space``.
        """
        if self.path is not None and self.path.suffix == ".zip":
            self._claim(min(UNPACKED_FACTOR * self._store.most_bytes, _MOST_DEFLATED * self.size))

    async def let_go(self) -> None:
        """Remove the file once nobody needs it any more."""
        self._users -= 1
        if self._users:
            return
        self.close()
        try:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        finally:
            self._store.give_back(self._claimed)

    def _claim(self, size: int) -> None:
        self._store.claim(size)
        self._claimed += size

    def _append(self, stream: BinaryIO, block: bytes) -> None:
        self._hash.update(block)
        view = memoryview(block)
        while view:
            view = view[stream.write(view) :]


@contextmanager
def _refusing_for_now() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        refusal = refusal_of_moment(exc)
        if refusal is None:
            raise
        raise refusal from exc


def refusal_of_moment(exc: OSError) -> ServiceError | None:
    """The refusal of an upload for a state of the machine that need not last, None where it is not that."""
    if exc.errno in _SPACE_ERRORS:
        return _no_space()
    if exc.errno in _OPEN_FILES_ERRORS:
        return ServiceError(
            "Too many files are open for another upload now.",
            code="upload.open_files",
            status=503,
            cure="Try again later.",
            headers=RETRY_AFTER,
        )
    return None


def _no_space() -> ServiceError:
    return ServiceError(
        "There is no room for another upload now.",
        code="upload.no_space",
        status=503,
        cure="Try again later.",
        headers=RETRY_AFTER,
    )
