"""Whether a model fits a device: its memory interval against the device's capacity."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from dippm.errors import UsageError, quote

__all__ = ["Fit", "FitVerdict", "fits"]


class FitVerdict(enum.StrEnum):
    """The answer to "does it fit?"."""

    YES = "yes"
    """The interval's upper end fits."""
    NO = "no"
    """Not even the interval's lower end fits."""
    UNSURE = "unsure"
    """The capacity lies inside the interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A verdict with the figures behind it.

    Args:
        verdict: Yes, no or unsure; it follows from the other fields and must agree with them.
        margin_mb: Capacity less the upper end of what is needed, MiB; negative when a fit is not certain.
        needed_mb: Lower and upper end of the memory that the model needs, MiB, 0 or more.
        capacity_mb: Memory that the device offers to one process, MiB, above 0.

    Raises:
        UsageError: The figures are no interval or capacity (code ``"placement.interval"`` or
            ``"placement.capacity"``), or the verdict or margin contradicts them (code ``"placement.verdict"``).
    """

    verdict: FitVerdict
    margin_mb: float
    needed_mb: tuple[float, float]
    capacity_mb: float

    def __post_init__(self) -> None:
        expected = _judge(self.needed_mb, self.capacity_mb)
        if (self.verdict, self.margin_mb) != expected:
            raise UsageError(
                f"A fit's verdict and margin must follow from its figures: {expected[0]} and {expected[1]:g} MiB. "
                f"Got {self.verdict} and {self.margin_mb:g} MiB instead.",
                code="placement.verdict",
                cure="Make it with dippm.placement.fits.",
            )


def fits(interval_mb: tuple[float, float], capacity_mb: float) -> Fit:
    """Says whether a model fits; limits are inclusive.

    Args:
        interval_mb: Lower and upper end of the memory that the model needs, MiB, 0 or more.
        capacity_mb: Memory that the device offers to one process (``DeviceSpec.capacity_mb``), MiB, above 0.

    Returns:
        Yes where the upper end fits, no where the lower end does not, unsure between.

    Raises:
        UsageError: The interval is not two finite numbers in order, or the capacity is not positive and finite; codes
            ``"placement.interval"`` and ``"placement.capacity"``.
    """
    verdict, margin_mb = _judge(interval_mb, capacity_mb)
    return Fit(verdict=verdict, margin_mb=margin_mb, needed_mb=interval_mb, capacity_mb=capacity_mb)


def _judge(interval_mb: tuple[float, float], capacity_mb: float) -> tuple[FitVerdict, float]:
    if (
        len(interval_mb) != 2
        or not all(math.isfinite(end) for end in interval_mb)
        or not (0 <= interval_mb[0] <= interval_mb[1])
    ):
        raise UsageError(
            "A memory interval must be two finite numbers, 0 or more, the lower first. Got "
            f"{quote(interval_mb)} instead.",
            code="placement.interval",
        )
    if not (math.isfinite(capacity_mb) and capacity_mb > 0):
        raise UsageError(
            f"A capacity must be a finite number of MiB above 0. Got {quote(capacity_mb)} instead.",
            code="placement.capacity",
        )
    low, high = interval_mb
    if high <= capacity_mb:
        verdict = FitVerdict.YES
    elif low > capacity_mb:
        verdict = FitVerdict.NO
    else:
        verdict = FitVerdict.UNSURE
    return verdict, capacity_mb - high
