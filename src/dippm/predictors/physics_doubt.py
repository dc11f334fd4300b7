"""How far off an answer of the physics may be: what its time rests on, and the intervals that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.calls import sum_by_call
from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.decompositions import MOST_TIMES
from dippm.costs.energy import PowerModel
from dippm.costs.latency import OTHER_HOST, LatencyBreakdown
from dippm.costs.precision import Precision
from dippm.costs.rates import architecture_of
from dippm.devices import DeviceSpec
from dippm.graph import OpKind
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.answerable import DOUBT_PER_UNSUPPORTED_SHARE, UNSUPPORTED_KINDS
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import Calibration
from dippm.predictors.compiled_steps import eager_conditions
from dippm.predictors.prepared_graph import UNMEASURED_KINDS, PreparedGraphs

__all__ = [
    "TimeGrounds", "memory_interval", "memory_spreads", "most_times", "time_and_energy_intervals", "time_spreads",
]  # fmt: skip

FloatArray = npt.NDArray[np.float64]
Ends = tuple[FloatArray, FloatArray]

_SUM_NAME = "physics-0"
_CORRECTED_NAME = "additive-1"
# The networks' 90 % quantile on a card that was left out, of the two of which one predicts the other: see
# docs/reports/inference_step.md. It holds for their architectures; elsewhere nothing shows that they beat the sum.
_UNSEEN_DEVICE = 0.14
_DOUBT_PER_UNMEASURED_SHARE = 1.0
# The 90 % quantile of what the sum is off on the 1,437 compiled models of the RTX 4090's table (amp, PyTorch 2.4), from
# which none of its rates was learned.
_COMPILED_MODELS = 0.27
# The 90 % quantile of what the peak of compiled steps is off on 26 published ones: docs/reports/compiled_steps.md.
_MEMORY_OF_COMPILED_STEPS = 0.1
# Of captured graphs, and of a format that a device only emulates, nothing was measured: assumed, not fitted.
_DOUBT_OF_CAPTURE = 0.3
_DOUBT_OF_EMULATION = math.log(2.0)
# No process is without a CUDA context; that it is never less than half of the estimate is assumed.
_LEAST_CONTEXT = 0.5
_LEAST_MS, _LEAST_J = 1e-9, 1e-12


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimeGrounds:
    """What the predicted time of graphs that run in one precision rests on, on a device.

    Args:
        predictor: Which of the two predictors worked it out.
        labels: The labels behind it.
        is_measured: Whether whole models were measured on the device under these conditions.
        unseen: Kinds of operators that no model had which the time was learned from.
        least_spread: Half-width of the 90 % interval of the time's logarithm, where the host is as fast as assumed: of
            the plain sum at any batch, of the networks at least.
        more_spread: What is added to it.
    """

    predictor: str
    labels: str
    is_measured: bool
    unseen: frozenset[OpKind]
    least_spread: float
    more_spread: float

    @classmethod
    def of(
        cls,
        prepared: PreparedGraphs,
        device: DeviceSpec,
        conditions: Conditions,
        *,
        sums: Calibration,
        networks: AdditivePredictor,
        is_corrected: bool,
    ) -> TimeGrounds:
        """Tell them of answers.

        Args:
            prepared: The graphs that are predicted together.
            device: The device.
            conditions: Those that the graphs that are meant are run under.
            sums: Labels and errors of the plain sum, from which the networks start.
            networks: The networks.
            is_corrected: Whether it is the answers that these have corrected, which have a half-width, or the others.
        """
        predictor, labels, unseen = _SUM_NAME, sums.labels, frozenset[OpKind]()
        if not is_corrected:
            is_eager = conditions.runtime is Runtime.EAGER
            is_known = device.name in sums.measured_devices and conditions.precision.value in sums.measured_precisions
            is_measured = is_known and is_eager
            spread = sums.latency_spread if is_measured else sums.latency_spread_elsewhere
            own = sums.architectures.get(architecture_of(device))
            if own is not None and prepared.compiled.plan.has_own_rates(conditions):
                labels = f"time: {own['device']}, the project's own labels; {labels}"
                spread = max(spread, own["half_width"])
                is_own = own["device"] == device.name and conditions.precision.value in own["precisions"]
                is_measured |= is_own and is_eager and conditions.mode is Mode.INFERENCE
            if prepared.compiled.eager is not None:
                labels = _with_labels_of_eager_steps(labels, prepared, conditions, device, networks)
            if conditions.runtime is Runtime.COMPILE:
                # What is off between devices and what is off by compiling are independent.
                spread = math.hypot(spread, _COMPILED_MODELS)
        else:
            predictor, labels = _CORRECTED_NAME, f"time: {networks.artefact(conditions).labels}; {labels}"
            unseen = networks.unseen_kinds(conditions)
            is_measured = networks.is_measured(device, conditions)
            spread = 0.0
            if not is_measured:
                is_sibling = networks.is_sibling(device, conditions)
                spread = _UNSEEN_DEVICE if is_sibling else sums.latency_spread_elsewhere
        return cls(
            predictor=predictor,
            labels=labels,
            is_measured=is_measured,
            unseen=unseen,
            least_spread=spread,
            more_spread=_DOUBT_OF_CAPTURE if conditions.runtime is Runtime.CUDA_GRAPH and not is_measured else 0.0,
        )


def _with_labels_of_eager_steps(
    labels: str, prepared: PreparedGraphs, conditions: Conditions, device: DeviceSpec, networks: AdditivePredictor
) -> str:
    """What the time of compiled training steps rests on."""
    eager = eager_conditions(conditions, is_turned=bool(prepared.compiled.plan.is_turned.any()))
    if not (networks.covers(device, eager) or networks.is_near(device, eager)):
        return labels
    return f"time of the eager step: {networks.artefact(eager).labels}; {labels}"


def time_spreads(
    prepared: PreparedGraphs,
    device: DeviceSpec,
    breakdown: LatencyBreakdown,
    grounds: Mapping[tuple[Precision, bool], TimeGrounds],
) -> FloatArray:
    """Half-width of the 90 % interval of the logarithm of each graph's time, where the host is as fast as assumed.

    Args:
        prepared: The graphs.
        device: The device.
        breakdown: Their times.
        grounds: What these rest on, by the precision that graphs run in, and whether the networks corrected them.

    Shapes:
        Result: [B, G].
    """
    compiled, is_corrected = prepared.compiled, breakdown.knows_interval
    runs_in = np.array([member.runs_in for member in compiled.members])
    emulation = np.array([0.0 if member.has_format(device) else _DOUBT_OF_EMULATION for member in compiled.members])
    doubt = DOUBT_PER_UNSUPPORTED_SHARE * breakdown.share_of(compiled.is_of(UNSUPPORTED_KINDS))
    doubt += _DOUBT_PER_UNMEASURED_SHARE * breakdown.share_of(compiled.is_of(UNMEASURED_KINDS))
    result = np.zeros_like(doubt)
    for (precision, corrected), own in grounds.items():
        known = 0.0 if breakdown.half_width is None or not corrected else breakdown.half_width
        unseen = _DOUBT_PER_UNMEASURED_SHARE * breakdown.share_of(compiled.is_of(own.unseen))
        spread = np.maximum(known, own.least_spread) + (doubt + unseen + emulation + own.more_spread)
        result = np.where((is_corrected == corrected) & (runs_in == precision), spread, result)
    return result


def most_times(prepared: PreparedGraphs, breakdown: LatencyBreakdown) -> FloatArray | float:
    """How many times the predicted time that of each graph may be, [B, G], or 1 of all.

    Decompositions of matrices take more than their arithmetic, and loops may run more often than they are counted.

    Args:
        prepared: The graphs.
        breakdown: Their times.
    """
    compiled = prepared.compiled
    most = compiled.most_runs
    if compiled.is_unsupported.any():
        is_decomposed = compiled.is_unsupported & (prepared.at.flops > 0.0).any(axis=0)
        most = most * np.where(is_decomposed, MOST_TIMES, 1.0)
    if most.max(initial=1.0) <= 1.0:
        return 1.0
    return 1.0 + sum_by_call(breakdown.share_ms * (most - 1.0), breakdown.start) / breakdown.latency_ms


def time_and_energy_intervals(
    breakdown: LatencyBreakdown,
    energy_j: FloatArray,
    load: BoardLoad,
    power: PowerModel,
    device: DeviceSpec,
    *,
    spread: FloatArray,
    power_spread: FloatArray | float,
    most_times: FloatArray | float = 1.0,
) -> tuple[Ends, Ends]:
    """Ends of the 90 % intervals of the time, ms, and of the energy, J.

    The errors of the device's time, of the host's and of the power are independent of each other. A host that is fast
    enough is not waited for, however much faster it is: there the device's error counts nearly in full. No call takes
    less than what its operators move takes to come from memory. A board that waits longer for its host draws no more
    than idle power for that, and less for kernels that run longer (:meth:`BoardLoad.energy_spreads`): the energy is
    known better than the time and the power are together.

    Args:
        breakdown: The time.
        energy_j: The energy.
        load: What the call asks of the board.
        power: Coefficients of its power.
        device: The device.
        spread: Half-width of the logarithm of the device's time.
        power_spread: The same of the power.
        most_times: How many times as long the upper ends may be for what the time leaves out.

    Shapes:
        energy_j, spread and all ends: as the time of a call, [B] or [B, G].
    """
    latency_ms, idle_w = breakdown.latency_ms, power.idle_w(device)
    of_kernels = load.energy_spreads(power, device, latency_ms, energy_j, spread)
    left = _left_to_device(breakdown, load)
    times, energies = [], []
    for own, host_ms, more in zip(
        of_kernels, (breakdown.fast_host_ms, breakdown.slow_host_ms), (left, np.zeros_like(left)), strict=True
    ):
        of_host = _log_ratio(host_ms, latency_ms, least=_LEAST_MS)
        times.append(np.exp(np.maximum(np.hypot(spread, of_host), np.abs(of_host) + more * spread)))
        of_host = _log_ratio(energy_j + idle_w * (host_ms - latency_ms) / 1e3, energy_j)
        of_time = np.maximum(np.hypot(own, of_host), np.abs(of_host) + more * own)
        energies.append(np.exp(np.hypot(of_time, power_spread)))
    latency_low, latency_high = latency_ms / times[0], latency_ms * times[1] * most_times
    latency_low = np.minimum(np.maximum(latency_low, breakdown.least_ms), latency_ms)
    energy_low, energy_high = energy_j / energies[0], energy_j * energies[1] * most_times
    # A board draws no more than its limit, however long it takes.
    most_j = device.board_power_w * latency_high / 1e3
    return (latency_low, latency_high), (energy_low, np.maximum(np.minimum(energy_high, most_j), energy_j))


def _left_to_device(breakdown: LatencyBreakdown, load: BoardLoad) -> FloatArray:
    """How much of the device's error may come on top of all that a faster host may save.

    A host that saves its most only where it is ``OTHER_HOST`` times as fast leaves nothing: both errors are rarely as
    large as that at once. One that has saved it when it is a little faster leaves nearly all, as far as kernels run.
    """
    fast_ms = np.maximum(breakdown.fast_host_ms, _LEAST_MS)
    used = np.clip(_log_ratio(breakdown.latency_ms, fast_ms, least=_LEAST_MS) / math.log(OTHER_HOST), 0.0, 1.0)
    busy_share = np.minimum(load.busy_share * breakdown.latency_ms / fast_ms, 1.0)
    result: FloatArray = busy_share * np.sqrt(1.0 - used**2)
    return result


def _log_ratio(one: FloatArray, other: FloatArray, *, least: float = _LEAST_J) -> FloatArray:
    """How far two figures of at least so much are apart."""
    result: FloatArray = np.log(np.maximum(one, least) / np.maximum(other, least))
    return result


def memory_spreads(prepared: PreparedGraphs, calibration: Calibration) -> tuple[float, float]:
    """Half-widths of the logarithm of the memory that is uncertain, downwards and upwards."""
    spreads = calibration.memory_spread_low, calibration.memory_spread
    if prepared.compiled.eager is None:
        return spreads
    low, high = (math.hypot(spread, _MEMORY_OF_COMPILED_STEPS) for spread in spreads)
    return low, high


def memory_interval(
    figure_mb: FloatArray,
    *,
    context_mb: FloatArray,
    certain_mb: FloatArray,
    margins_mb: tuple[float, float],
    spreads: tuple[float, float],
    more_mb: FloatArray | float = 0.0,
) -> Ends:
    """Ends of the 90 % interval of what is held, or needed, MiB.

    Weights, gradients and state are exact; what lies beside tensors is off by so many MiB, the rest by a factor.

    Args:
        figure_mb: What is held, or needed.
        context_mb: The context's part of it.
        certain_mb: What is exact of it, see :data:`~dippm.predictors.calibration.CERTAIN_PARTS`.
        margins_mb: How far off the context may be, see :meth:`Calibration.context_margins_mb`.
        spreads: See :func:`memory_spreads`.
        more_mb: See :attr:`~dippm.predictors.prepared_graph.CompiledGraph.more_mb`.

    Shapes:
        All arrays and the ends: [...].
    """
    loose = figure_mb - context_mb - certain_mb
    low = loose * (1.0 - math.exp(-spreads[0])) + margins_mb[0]
    high = loose * (math.exp(spreads[1]) - 1.0) + margins_mb[1] + more_mb
    return np.maximum(figure_mb - low, certain_mb + _LEAST_CONTEXT * context_mb), figure_mb + high
