"""The end of what a process says, however much it says."""

from __future__ import annotations

import threading
from io import BufferedReader

__all__ = ["OutputTail"]

_BLOCK_BYTES = 64 * 1024
_LAST_WORDS_S = 2.0


class OutputTail:
    """Reads a pipe as long as anything comes, and keeps the end.

    Args:
        stream: The pipe; closed here.
        most_bytes: How much to keep.
    """

    def __init__(self, stream: BufferedReader, *, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._kept = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> bytes:
        """What came last; to be asked for when the process has ended."""
        # Who left the process's group, and it must be a hostile one, may still hold the pipe.
        self._reader.join(_LAST_WORDS_S)
        return self._kept

    def _read(self) -> None:
        with self._stream as stream:
            while block := stream.read1(_BLOCK_BYTES):
                self._kept = (self._kept + block)[-self._most_bytes :]
