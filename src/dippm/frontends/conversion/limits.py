"""What one conversion may take of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from dippm.errors import UsageError

__all__ = ["ConversionLimits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionLimits:
    """Limits of one conversion.

    Args:
        seconds: Wall time, s.
        memory_mb: Memory that the converter's process may allocate, MiB. Linux holds to it; other systems may not.
        output_mb: Size of any one file that it may write, MiB.

    Raises:
        UsageError: ``conversion.limit_invalid`` where one is not positive.
    """

    seconds: float = 600.0
    memory_mb: int = 16 * 1024
    output_mb: int = 16 * 1024

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mb", "output_mb"):
            value = getattr(self, name)
            if not value > 0:
                raise UsageError(
                    f"The limit {name} of a conversion must be positive. Got {value}.", code="conversion.limit_invalid"
                )
