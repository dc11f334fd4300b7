"""Bring power models and the CUDA context to the energy and the memory that a device's labels have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode
from dippm.costs.context import context_mb
from dippm.costs.energy import PowerModel
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.software_graphs import software_of
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec
from dippm.errors import DippmError
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.physics import conformal_quantile

__all__ = ["CalibratedPower", "MeasuredContext", "calibrate_power", "measure_context"]

_LOG = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedPower:
    """What the power model of a mode was brought to.

    Args:
        mode: Inference or training.
        rows: Rows with energy.
        ratio: Measured power over that of the shipped model, the median.
        spread: Half-width of the 90 % interval of the logarithm of the power, after the ratio.
    """

    mode: str
    rows: int
    ratio: float
    spread: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredContext:
    """What a process holds beside its tensors.

    Args:
        rows: Rows that say so.
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
        label.measurement.context_mb
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
    """
    result, changes = dict(calibrations), []
    for mode, calibration in calibrations.items():
        measured = [
            label
            for label in labels
            if label.configuration.conditions.mode is mode
            and label.measurement.energy_j
            and label.measurement.latency_ms
        ]
        scores = _log_power_ratios(measured, predictor, device, cache=cache)
        if len(scores) < least_rows:
            continue
        shift = float(np.median(scores))
        ratio, spread = float(np.exp(shift)), conformal_quantile(np.abs(scores - shift))
        changes.append(
            CalibratedPower(mode=mode.value, rows=len(scores), ratio=round(ratio, 4), spread=round(spread, 4))
        )
        power = calibration.power
        result[mode] = replace(
            calibration,
            power=PowerModel(**{field.name: getattr(power, field.name) * ratio for field in fields(PowerModel)}),
            power_spread=spread,
            power_devices=(device.name,),
        )
    return result, tuple(changes)


def _log_power_ratios(
    labels: Sequence[Label], predictor: PhysicsPredictor, device: DeviceSpec, *, cache: GraphCache
) -> FloatArray:
    """Logarithm of measured over predicted power: an error of the time would count twice in the energy.

    Shapes:
        result: [at most len(labels)]; what cannot be predicted is left out.
    """
    scores = []
    for label in labels:
        cached = cache.load(label.recipe.model_key, batch=label.recipe.batch)
        if cached is None:
            continue
        measured = label.measurement
        try:
            (predicted,) = predictor.predict(
                cached.graph,
                batches=[label.recipe.batch],
                devices=[device],
                conditions=label.configuration.conditions,
                software=software_of(measured.software.framework),
            )
        except DippmError as exc:
            _LOG.warning("energy of %s left out: %s", label.recipe.architecture, exc)
            continue
        if predicted.energy_j and measured.energy_j and measured.latency_ms:
            power = measured.energy_j / measured.latency_ms
            scores.append(np.log(power * predicted.latency_ms / predicted.energy_j))
    return np.array(scores, dtype=np.float64)
