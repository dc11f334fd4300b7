"""The power model that fits the mean power of calls best, and how far it is off on what was left out of the fit.

Four energies are fitted by least squares on ``log(predicted / measured)``, robust to outliers, each board alike, and
beside them by what factor the mean over an epoch of training, in which the board also waits for data, is below the
power of a step. All are weakly drawn to where they start: an energy that no board tells of stays there, and is taken
at half, at once and at twice that where a group is left out, of which the worst counts.

Where enough calls of an architecture were measured, what they say beyond these energies is a correction of its own
(:mod:`dippm.costs.power_correction`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dippm.costs.energy import BOARD_USE, PowerModel
from dippm.costs.power_correction import PowerCorrection
from dippm.devices import DeviceSpec
from dippm.errors import MissingExtraError
from dippm.predictors.board_load import BoardLoad

__all__ = [
    "FittedPower",
    "PowerPoint",
    "describe_power",
    "fit_corrected_power",
    "fit_power",
    "leave_groups_out",
    "log_power_errors",
    "spread_of",
]

FloatArray = npt.NDArray[np.float64]

_COVERAGE = 0.9
# Start, lowest and highest value of each energy in pJ, and of the share of an epoch's mean.
_ENERGIES = {
    "running_pj": (20.0, 0.0, 200.0),
    "flop_pj": (5.0, 0.0, 100.0),
    "tensor_pj": (3.0, 0.0, 50.0),
    "byte_pj": (40.0, 0.0, 1000.0),
}
_EPOCH = (0.9, 0.8, 1.0)
_SOFT = 0.05
# Of what each value is away from its start, relative to it: an energy that no board tells of, as that of tensor cores
# without the boards of 7 nm, stays there, and does not end wherever the solver happens to pass.
_PULL = 0.01
# Where an energy that no board tells of might be instead, over the start.
_STARTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PowerPoint:
    """Measured mean power of one call, and what the call asked of the board.

    Args:
        device: The board.
        load: Its work.
        latency_ms: Measured time of the call, ms.
        power_share: Measured mean power over the board's limit.
        is_of_epoch: Whether it is a mean over an epoch, in which the board also waits for data.
        model: Name of the model; empty where no fit leaves it out.
        family: Name of its family; likewise.
        key: Key of its label; empty where it is of none.
    """

    device: DeviceSpec
    load: BoardLoad
    latency_ms: float
    power_share: float
    is_of_epoch: bool = False
    model: str = ""
    family: str = ""
    key: str = ""


class FitPower(Protocol):
    """What :func:`fit_power` and :func:`fit_corrected_power` are."""

    def __call__(self, points: Sequence[PowerPoint], *, idle: float, start_factor: float = 1.0) -> FittedPower:
        """Fit a power model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPower:
    """A power model, and what belongs to its labels alone.

    Args:
        model: The power model.
        epoch_share: Mean power over an epoch of the traces over that of a step.
    """

    model: PowerModel
    epoch_share: float


def fit_power(points: Sequence[PowerPoint], *, idle: float, start_factor: float = 1.0) -> FittedPower:
    """The power model that fits the points best, each board alike.

    Args:
        points: What was measured.
        idle: Share of the limit that is drawn while no kernel runs.
        start_factor: Where the energies start, and stay if no point tells of them, over where they usually do.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the power model") from exc
    counts = Counter(point.device.name for point in points)
    weights = np.array([counts[point.device.name] ** -0.5 for point in points])

    def fitted_of(values: FloatArray) -> FittedPower:
        *energies, epoch_share = (round(value, 4) for value in values.tolist())
        model = PowerModel(idle=idle, **dict(zip(_ENERGIES, energies, strict=True)))
        return FittedPower(model=model, epoch_share=epoch_share)

    start, low, high = np.array([*_ENERGIES.values(), _EPOCH]).T
    start[:-1] *= start_factor

    def residuals(values: FloatArray) -> FloatArray:
        pulls = _PULL * (values / start - 1.0)
        return np.concatenate([weights * log_power_errors(points, fitted_of(values)), pulls])

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, x_scale=start, diff_step=1e-3
    )
    return fitted_of(solution.x)


def fit_corrected_power(points: Sequence[PowerPoint], *, idle: float, start_factor: float = 1.0) -> FittedPower:
    """The same, with a correction by how calls use their board.

    Arguments and errors are those of :func:`fit_power`.
    """
    fitted = fit_power(points, idle=idle, start_factor=start_factor)
    if not points:
        return fitted
    figures = [point.load.describe(point.device, np.array([point.latency_ms]))[0] for point in points]
    correction = PowerCorrection.fit(BOARD_USE, np.array(figures), log_power_errors(points, fitted))
    return replace(fitted, model=replace(fitted.model, correction=correction))


def log_power_errors(points: Sequence[PowerPoint], fitted: FittedPower) -> FloatArray:
    """``log(predicted / measured)`` of the power of every point, at the measured time.

    Shapes:
        Result: [len(points)].
    """
    predicted = [
        float(point.load.power_w(fitted.model, point.device, np.array([point.latency_ms]))[0])
        / point.device.board_power_w
        * (fitted.epoch_share if point.is_of_epoch else 1.0)
        for point in points
    ]
    result: FloatArray = np.log(np.array(predicted) / np.array([point.power_share for point in points]))
    return result


def leave_groups_out(
    points: Sequence[PowerPoint],
    group_of: Callable[[PowerPoint], str],
    *,
    idle: float,
    fit: FitPower = fit_power,
) -> dict[str, FloatArray]:
    """Errors on the points of every group of a fit on all others, by the group's name.

    An energy that only this group tells of may be anything: of fits that leave it at half, at once and at twice where
    it starts the worst counts.

    Args:
        points: What was measured.
        group_of: Name of the group that a point belongs to: its board, or the process that its chip is made in.
        idle: Share of the limit that is drawn while no kernel runs.
        fit: What fits the others.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    errors = {}
    for group in sorted({group_of(point) for point in points}):
        others = [point for point in points if group_of(point) != group]
        own = [point for point in points if group_of(point) == group]
        errors[group] = max(
            (log_power_errors(own, fit(others, idle=idle, start_factor=factor)) for factor in _STARTS),
            key=_quantile,
        )
    return errors


def spread_of(errors: Mapping[str, FloatArray]) -> float:
    """The 90 % quantile of the errors of the group that is met worst."""
    return max(map(_quantile, errors.values()))


def _quantile(errors: FloatArray) -> float:
    return float(np.quantile(np.abs(errors), _COVERAGE))


def describe_power(errors: FloatArray) -> dict[str, float]:
    """How far off ``log(predicted / measured)`` says that the power is, %."""
    relative = np.expm1(errors)
    return {
        "rows": len(errors),
        "mean_percent": round(100 * float(np.abs(relative).mean()), 1),
        "bias_percent": round(100 * float(np.median(relative)), 1),
        "nine_in_ten_percent": round(100 * float(np.quantile(np.abs(relative), _COVERAGE)), 1),
    }
