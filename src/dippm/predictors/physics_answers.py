"""Answers of the shipped predictor on one device, for several graphs at once: figures, intervals, warnings, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dippm.costs.latency import LatencyBreakdown
from dippm.costs.memory import MemoryEstimate
from dippm.costs.precision import Precision
from dippm.costs.software import Software
from dippm.costs.software_support import driving_build
from dippm.devices import DeviceSpec
from dippm.placement.mig import MigPolicy, choose_mig
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import CERTAIN_PARTS, Calibration
from dippm.predictors.physics_doubt import (
    TimeGrounds,
    memory_interval,
    memory_spreads,
    most_times,
    time_and_energy_intervals,
    time_spreads,
)
from dippm.predictors.physics_warnings import find_cache_copies, find_plain_heads, warn_of_answer, warn_of_question
from dippm.predictors.prediction import NoSlice, Prediction, PredictorInfo
from dippm.predictors.prepared_graph import CompiledGraph, PreparedGraphs

__all__ = ["DeviceAnswers"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceAnswers:
    """Graphs on a device, their memory and times known.

    Args:
        prepared: The graphs.
        device: The device.
        memories: Memory of each graph.
        breakdown: Their times, side by side.
        calibration: Coefficients and errors of the plain sum.
        networks: The networks that answer, by the precision that graphs are run in.
    """

    prepared: PreparedGraphs
    device: DeviceSpec
    memories: Sequence[MemoryEstimate]
    breakdown: LatencyBreakdown
    calibration: Calibration
    networks: Mapping[Precision, AdditivePredictor]

    def answers(self, mig_policy: MigPolicy) -> list[list[Prediction]]:
        """Of each graph the answer at each batch."""
        figures = np.array(self._figures()).transpose(2, 1, 0).tolist()
        return [self._of_graph(place, rows, mig_policy) for place, rows in enumerate(figures)]

    def _figures(self) -> list[FloatArray]:
        """All figures of each graph at each batch, in the order in which :meth:`_of_graph` names them, [B, G] each."""
        prepared, device, breakdown, calibration = self.prepared, self.device, self.breakdown, self.calibration
        fusion = prepared.compiled.plan.work.fusion
        kernel = None if fusion is None else fusion.kernel
        load = BoardLoad.of(breakdown, prepared.work_on(device), kernel=kernel)
        energy_j = load.energy_j(calibration.power, device, breakdown.latency_ms)
        latency_ends, energy_ends = time_and_energy_intervals(
            breakdown,
            energy_j,
            load,
            calibration.power,
            device,
            spread=time_spreads(prepared, device, breakdown, self._grounds),
            power_spread=calibration.power_spread_on(device, load.busy_share),
            most_times=most_times(prepared, breakdown),
        )
        held_mb, needed_mb, context_mb, certain_mb = np.array(
            [[own.memory_mb, own.needed_mb, own.parts_mb["context"], _certain_mb(own)] for own in self.memories]
        ).transpose(1, 2, 0)
        memory_ends, needed_ends = (
            memory_interval(
                figure_mb,
                context_mb=context_mb,
                certain_mb=certain_mb,
                margins_mb=calibration.context_margins_mb(device, self.software),
                spreads=memory_spreads(prepared, calibration),
                more_mb=np.array([member.more_mb for member in prepared.compiled.members]),
            )
            for figure_mb in (held_mb, needed_mb)
        )
        return [
            breakdown.latency_ms,
            energy_j,
            held_mb,
            *latency_ends,
            *energy_ends,
            *memory_ends,
            *needed_ends,
            load.busy_share,
            breakdown.share_of(find_cache_copies(prepared)),
            breakdown.share_of(find_plain_heads(prepared, device, calibration.rates)),
        ]

    @cached_property
    def software(self) -> Software:
        """What drives the device."""
        return driving_build(self.device, self.prepared.compiled.software)

    @cached_property
    def _is_corrected(self) -> list[list[bool]]:
        """Of each graph at which batches the networks corrected its time."""
        result: list[list[bool]] = self.breakdown.knows_interval.T.tolist()
        return result

    @cached_property
    def _grounds(self) -> Mapping[tuple[Precision, bool], TimeGrounds]:
        """What times rest on, by the precision that graphs run in, and whether the networks corrected them."""
        prepared = self.prepared
        ways = zip(prepared.compiled.members, self._is_corrected, strict=True)
        return {
            (precision, is_corrected): TimeGrounds.of(
                prepared,
                self.device,
                prepared.as_run[precision],
                sums=self.calibration,
                networks=self.networks[precision],
                is_corrected=is_corrected,
            )
            for precision, is_corrected in dict.fromkeys((member.runs_in, own) for member, each in ways for own in each)
        }

    def _of_graph(self, place: int, figures: Sequence[Sequence[float]], mig_policy: MigPolicy) -> list[Prediction]:
        """The answer for one of the graphs at each batch."""
        prepared, device, memory = self.prepared, self.device, self.memories[place]
        compiled, is_corrected = prepared.compiled.members[place], self._is_corrected[place]
        warnings = {corrected: self._warnings(compiled, corrected) for corrected in dict.fromkeys(is_corrected)}
        parts_mb = np.array(list(memory.parts_mb.values())).T.tolist()
        infos: dict[tuple[bool, tuple[str, ...]], PredictorInfo] = {}
        predictions = []
        rows = zip(
            prepared.batches,
            prepared.inputs[place],
            prepared.macs[place],
            figures,
            parts_mb,
            is_corrected,
            strict=True,
        )
        for batch, inputs, macs, row, parts, corrected in rows:
            (
                latency_ms, energy_j, memory_mb, latency_low, latency_high, energy_low, energy_high, memory_low,
                memory_high, needed_low, needed_high, busy_share, copying_share, head_share,
            ) = row  # fmt: skip
            of_row = warn_of_answer(
                compiled.source,
                batch,
                device,
                runtime=prepared.conditions.runtime,
                busy_share=busy_share,
                copying_share=copying_share,
                head_share=head_share,
                needed_mb=(needed_low, needed_high),
            )
            key = corrected, of_row
            if key not in infos:
                grounds = self._grounds[compiled.runs_in, corrected]
                infos[key] = PredictorInfo(
                    name=grounds.predictor,
                    version=self.calibration.version,
                    labels=grounds.labels,
                    warnings=(*warnings[corrected], *of_row),
                )
            predictions.append(
                Prediction(
                    model=compiled.model,
                    device=device.name,
                    conditions=prepared.as_run[compiled.runs_in],
                    software=self.software,
                    batch=batch,
                    inputs=inputs,
                    macs=macs,
                    latency_ms=latency_ms,
                    energy_j=energy_j,
                    memory_mb=memory_mb,
                    memory_parts_mb=dict(zip(memory.parts_mb, parts, strict=True)),
                    needed_mb=(needed_low, needed_high),
                    mig=choose_mig(memory_mb, device, interval_high_mb=needed_high, policy=mig_policy),
                    no_slice=self._no_slice,
                    intervals={
                        "latency_ms": (latency_low, latency_high),
                        "energy_j": (energy_low, energy_high),
                        "memory_mb": (memory_low, memory_high),
                    },
                    predictor=infos[key],
                )
            )
        return predictions

    @cached_property
    def _no_slice(self) -> NoSlice:
        return NoSlice.why(self.device)

    def _warnings(self, compiled: CompiledGraph, corrected: bool) -> tuple[str, ...]:
        grounds = self._grounds[compiled.runs_in, corrected]
        return warn_of_question(
            self.prepared,
            compiled,
            self.device,
            is_measured=grounds.is_measured,
            unseen=grounds.unseen,
            power=self.calibration.power,
            power_devices=self.calibration.power_devices,
        )


def _certain_mb(memory: MemoryEstimate) -> FloatArray:
    """What is exact of the memory, [B]."""
    parts = memory.parts_mb
    return sum((parts[name] for name in CERTAIN_PARTS if name in parts), np.zeros(len(memory.batches)))
