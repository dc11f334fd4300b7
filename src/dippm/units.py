"""Conversions between the units that names carry (DESIGN: ``memory_mb`` is MiB, as NVML counts)."""

from __future__ import annotations

__all__ = ["BYTES_PER_MIB", "GIGA", "MEGA", "MILLI", "PICO", "TERA", "bytes_to_mib"]

BYTES_PER_MIB = 2**20
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
MILLI = 1e-3
PICO = 1e-12


def bytes_to_mib(size_bytes: float) -> float:
    """Bytes to MiB (2^20 bytes)."""
    return size_bytes / BYTES_PER_MIB
