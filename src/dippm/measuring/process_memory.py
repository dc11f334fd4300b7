"""Resident memory of this process and its peak."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
import sys
from pathlib import Path

from dippm.processes.peak_memory import peak_memory_mb

__all__ = ["KEPT", "ResidentMemory", "describe_allocator", "keep_freed_memory", "limit_address_space", "trim_heap"]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_KIB_PER_MIB = 1024.0
# Parameters of mallopt(3). A negative number of bytes is none that a block ever reaches.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64 bits: what larger blocks cost stays what it is.
_LARGEST_KEPT_BYTES = 32 << 20

KEPT = "freed memory kept"
"""How :func:`describe_allocator` names what :func:`keep_freed_memory` has done."""

_allocator: list[str] = []


class ResidentMemory:
    """Peak of the process's resident memory between a reset and a reading.

    Linux keeps a peak that can be reset. Where it cannot, the peak of the whole life of the process is known, and
    tells something about the time since the reset only if it grew in it.

    Args:
        status: The kernel's account of the process.
        clear_refs: What resets the peak.
    """

    def __init__(self, status: Path = _STATUS, clear_refs: Path = _CLEAR_REFS) -> None:
        self._status = status
        self._clear_refs = clear_refs
        self._peak_before: float | None = None

    def current_mb(self) -> float | None:
        """Resident memory now, MiB."""
        return self._read("VmRSS")

    def reset_peak(self) -> None:
        """Begin a new peak."""
        try:
            self._clear_refs.write_text(_RESET_PEAK, encoding="ascii")
        except OSError:
            self._peak_before = self._lifetime_peak_mb()
        else:
            self._peak_before = None

    def peak_mb(self) -> float | None:
        """The peak since the reset, MiB; None where it is hidden below an earlier, higher one."""
        peak = self._lifetime_peak_mb()
        if peak is None or self._peak_before is None or peak > self._peak_before:
            return peak
        return None

    def _lifetime_peak_mb(self) -> float | None:
        peak = self._read("VmHWM")
        return peak_memory_mb() if peak is None else peak

    def _read(self, key: str) -> float | None:
        try:
            found = re.search(rf"^{key}:\s+(\d+) kB", self._status.read_text(encoding="ascii"), re.MULTILINE)
        except OSError:
            return None
        return None if found is None else int(found[1]) / _KIB_PER_MIB


def limit_address_space(extra_mb: float) -> None:
    """Let the process map at most so much memory more than it has mapped now, MiB. Does nothing without ``/proc``."""
    import resource

    found = re.search(r"^VmSize:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is not None:
        limit = int(found[1]) * 1024 + int(extra_mb * 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def keep_freed_memory() -> None:
    """Let the C library keep what a call frees for the next one; does nothing where it is not glibc.

    Left alone, glibc gives large blocks back to the system until it has learnt from what was freed before to keep them,
    and gives the heap's end back where more of it is free than twice the largest such block. Whether the same call
    then writes to memory that it has or to pages that the system has to clear first, which takes twice as long where
    little is computed, hangs on what else the process has run. Blocks up to 32 MiB are kept, and the heap is trimmed by
    :func:`trim_heap` alone: what a process gets from an allocator made for such work, as tcmalloc and jemalloc are.
    """
    mallopt = _of_c_library("mallopt")
    if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        _allocator.append(KEPT)


def describe_allocator() -> str:
    """What is unusual of the process's allocator, ``""`` where nothing is."""
    return _allocator[0] if _allocator else ""


def trim_heap() -> None:
    """Give freed memory that the C library kept back to the system; does nothing where it cannot."""
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


@functools.cache
def _of_c_library(function: str) -> ctypes._NamedFuncPointer | None:
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    return None if name is None else getattr(ctypes.CDLL(name), function, None)
