"""The most memory that this process has held."""

from __future__ import annotations

import sys

__all__ = ["peak_memory_mb"]

_KIB_PER_MIB = 1024.0


def peak_memory_mb() -> float | None:
    """Peak of this process's resident memory since it began, MiB; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    used = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # In KiB, on macOS in bytes.
    return used / _KIB_PER_MIB**2 if sys.platform == "darwin" else used / _KIB_PER_MIB
