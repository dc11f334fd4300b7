"""What an adaptation of the shipped predictor to a device came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dippm.training.device_calibration import CalibratedPower, MeasuredContext

__all__ = ["AdaptationReport", "AdaptedRegime"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptedRegime:
    """What adapting came to in one regime.

    Args:
        regime: Mode and runtime.
        rows: Rows that the networks learned from.
        models: Their models.
        host_rows: Further rows in which the device waits for the host.
        before: Errors of the shipped predictor on the rows, see :func:`dippm.training.additive.describe_errors`.
        after: The same by networks that were tuned without the row's model.
        is_tuned: Whether that is less, so that the tuned networks were written; else those that were shipped were.
        coverage_before_percent: How many of the rows the shipped intervals hold.
        half_width_factor: What the shipped half-widths are multiplied with.
        median_half_width_percent: Median half-width of the new intervals, for models that were not learned from.
    """

    regime: str
    rows: int
    models: int
    host_rows: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    is_tuned: bool
    coverage_before_percent: float
    half_width_factor: float
    median_half_width_percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptationReport:
    """What an adaptation came to.

    Args:
        device: The device.
        folder: Where the predictor lies.
        regimes: What was adapted.
        host_ratio: Host time of an operator over that of the measured host.
        power: What the power model of each mode with energy labels was brought to.
        context: What a process holds beside its tensors, where the labels say so.
        left_out: Why rows were left out, and how many.
        unread: Models left out because their graph cannot be read: model key to reason.
        duration_s: Wall time, s.
    """

    device: str
    folder: str
    regimes: tuple[AdaptedRegime, ...]
    host_ratio: float
    power: tuple[CalibratedPower, ...]
    context: MeasuredContext | None
    left_out: Mapping[str, int]
    unread: Mapping[str, str]
    duration_s: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)
