"""Bring power models and the CUDA context to the energy and the memory that a device's labels have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.context import context_growth_mb, context_mb
from dippm.costs.energy import PowerModel
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.software_graphs import software_of
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec
from dippm.errors import DippmError, UsageError
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.physics import conformal_quantile

__all__ = ["CalibratedPower", "MeasuredContext", "calibrate_power", "measure_context"]

_LOG = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]

# Least and largest factor on a power model, and how often the way between them is halved.
_RATIOS = (0.05, 20.0)
# By what factor of them a ratio still counts as one of them.
_AT_END = 1.01
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedPower:
    """What the power model of a mode was brought to.

    Args:
        mode: Inference or training.
        rows: Rows with energy.
        ratio: What the shipped model's energies and idle share are multiplied by, so that half of the rows draw more
            than predicted.
        spread: Half-width of the 90 % interval of the logarithm of the power, after the ratio.
    """

    mode: str
    rows: int
    ratio: float
    spread: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredContext:
    """What a process that only runs forward passes holds beside its tensors.

    Args:
        rows: Rows that say so; what backward passes and captured graphs add is taken off theirs.
        context_mb: The median, MiB.
        estimated_mb: What would have been estimated, MiB.
        margin_low_mb: By how much less 95 % of the rows hold at most, MiB.
        margin_high_mb: By how much more, MiB.
    """

    rows: int
    context_mb: float
    estimated_mb: float
    margin_low_mb: float
    margin_high_mb: float


def measure_context(labels: Sequence[Label], device: DeviceSpec, *, least_rows: int) -> MeasuredContext | None:
    """The context by a device's labels, None where too few of them say.

    Args:
        labels: Labels of the device, run by PyTorch.
        device: The device.
        least_rows: Rows that there must be.
    """
    known = [
        label.measurement.context_mb - _growth_mb(label)
        for label in labels
        if label.measurement.context_mb and software_of(label.measurement.software.framework).loads_lazily
    ]
    if len(known) < least_rows:
        return None
    low, middle, high = (float(value) for value in np.quantile(known, (0.05, 0.5, 0.95)))
    return MeasuredContext(
        rows=len(known),
        context_mb=round(middle, 1),
        estimated_mb=round(context_mb(replace(device, context_mb=None)), 1),
        margin_low_mb=round(middle - low, 1),
        margin_high_mb=round(high - middle, 1),
    )


def _growth_mb(label: Label) -> float:
    conditions = label.configuration.conditions
    return context_growth_mb(
        software_of(label.measurement.software.framework),
        trains=conditions.mode is Mode.TRAINING,
        is_captured=conditions.runtime is Runtime.CUDA_GRAPH,
    )


def calibrate_power(
    labels: Sequence[Label],
    calibrations: Mapping[Mode, Calibration],
    predictor: PhysicsPredictor,
    device: DeviceSpec,
    *,
    cache: GraphCache,
    least_rows: int,
) -> tuple[dict[Mode, Calibration], tuple[CalibratedPower, ...]]:
    """Scale power models to measured energy, where a mode has enough rows of it.

    Args:
        labels: Labels of the device that the predictor answers for.
        calibrations: Calibrations by mode.
        predictor: What predicts with these calibrations.
        device: The device.
        cache: Graphs of the labels.
        least_rows: Rows that a mode must have.

    Returns:
        The calibrations, and what was changed in them.

    Raises:
        UsageError: ``adapt.implausible`` where the energy is of another order of magnitude.
    """
    result, changes = dict(calibrations), []
    for mode, calibration in calibrations.items():
        measured = [
            label
            for label in labels
            if label.configuration.conditions.mode is mode and label.measurement.energy_j and label.measurement.is_timed
        ]
        draws = _measured_draws(measured, predictor, device, cache=cache)
        if len(draws) < least_rows:
            continue
        ratio = _fit_ratio(draws, calibration.power.on(device), device)
        if not _RATIOS[0] * _AT_END < ratio < _RATIOS[1] / _AT_END:
            raise UsageError(
                f"Half of the labels of {mode.value} that have energy draw {ratio:.3g} times the power that is "
                f"predicted, or are further off. A power model is scaled by {_RATIOS[0]:g} to {_RATIOS[1]:g}.",
                code="adapt.implausible",
                cure="Check that energy_j is in joules, and latency_ms in milliseconds.",
            )
        power = _scaled(calibration.power.on(device), ratio)
        spread = conformal_quantile(np.abs(_log_power_ratios(draws, power, device)))
        changes.append(
            CalibratedPower(mode=mode.value, rows=len(draws), ratio=round(ratio, 4), spread=round(spread, 4))
        )
        result[mode] = replace(
            calibration,
            power=power,
            power_spread=spread,
            power_spreads={},
            busy_power_spreads={},
            power_devices=(device.name,),
        )
    return result, tuple(changes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Draw:
    """Mean power that a label has, and what its call asks of the board: an error of the time would count twice."""

    load: BoardLoad
    latency_ms: float
    power_w: float


def _measured_draws(
    labels: Sequence[Label], predictor: PhysicsPredictor, device: DeviceSpec, *, cache: GraphCache
) -> list[_Draw]:
    """Those of all labels that can be predicted, at the predicted time."""
    draws = []
    for label in labels:
        cached = load_label_graph(label, cache)
        energy_j, latency_ms = label.measurement.energy_j, label.measurement.latency_ms
        if cached is None or not energy_j or not latency_ms:
            continue
        conditions = label.configuration.conditions
        software = software_of(label.measurement.software.framework)
        batch = label.recipe.batch
        try:
            (predicted,) = predictor.predict(
                cached.graph, batches=[batch], devices=[device], conditions=conditions, software=software
            )
            load = predictor.load_of(cached.graph, batch=batch, device=device, conditions=conditions, software=software)
        except DippmError as exc:
            _LOG.warning("energy of %s left out: %s", label.recipe.architecture, exc)
            continue
        draws.append(_Draw(load=load, latency_ms=predicted.latency_ms, power_w=1e3 * energy_j / latency_ms))
    return draws


def _fit_ratio(draws: Sequence[_Draw], power: PowerModel, device: DeviceSpec) -> float:
    """The least factor at which the median of :func:`_log_power_ratios` is 0, or as near to it as it comes.

    It is no ratio of powers: a board at its limit draws no more, whatever its model says.
    """

    def shift(factor: float) -> float:
        return float(np.median(_log_power_ratios(draws, _scaled(power, factor), device)))

    low, high = np.log(_RATIOS)
    least = max(shift(float(np.exp(high))), 0.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if shift(float(np.exp(middle))) <= least else (middle, high)
    return float(np.exp(high))


def _scaled(power: PowerModel, factor: float) -> PowerModel:
    energies = {name: factor * getattr(power, name) for name in ("running_pj", "flop_pj", "tensor_pj", "byte_pj")}
    return replace(power, idle=min(factor * power.idle, 1.0), measured={}, **energies)


def _log_power_ratios(draws: Sequence[_Draw], power: PowerModel, device: DeviceSpec) -> FloatArray:
    """Logarithm of measured over predicted power.

    Shapes:
        result: [len(draws)].
    """
    ratios = [draw.power_w / draw.load.power_w(power, device, np.array([draw.latency_ms]))[0] for draw in draws]
    result: FloatArray = np.log(ratios)
    return result
