"""A process whose libraries have nothing to say."""

from __future__ import annotations

import os

__all__ = ["fall_silent"]


def fall_silent() -> None:
    """From here on nothing that this process, or what it starts, writes or reads is another's."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
