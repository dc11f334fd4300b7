"""The shipped predictor: the costs of all operators, summed, with a calibrated interval.

Where an additive network was trained on the device and the conditions that are asked for, it corrects the time of each
operator; everywhere else the sum stands as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.edges import IndexArray
from dippm.costs.energy import KernelWork
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.memory import Headroom, MemoryEstimate, estimate_memory
from dippm.costs.precision import Precision
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software, driving_build
from dippm.devices import DeviceSpec
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy, choose_mig
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.answerable import check_answerable
from dippm.predictors.best_times import BestTimes
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics_doubt import (
    TimeGrounds,
    memory_interval,
    memory_spreads,
    most_times,
    time_and_energy_intervals,
)
from dippm.predictors.physics_warnings import (
    find_plain_heads,
    share_of_copying,
    share_of_heads,
    warn_of_answer,
    warn_of_question,
)
from dippm.predictors.prediction import NoSlice, Prediction, PredictorInfo
from dippm.predictors.prepared_graph import (
    CompiledGraphs,
    PreparedGraphs,
    group_graphs,
)
from dippm.processes.collection_pause import collection_paused
from dippm.units import BYTES_PER_MIB

__all__ = ["Explanation", "PhysicsPredictor"]

FloatArray = npt.NDArray[np.float64]

_KEPT_GRAPHS = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Explanation:
    """A prediction with what every node adds to it.

    Args:
        prediction: The prediction.
        graph: The graph whose nodes are meant: the model's, or that of the whole training step.
        phase: Phase of each node, see :class:`~dippm.costs.training_step.training_graph.Phase`; 0 at inference.
        time_ms: Part of the latency of each node; adds up to it.
        live_mb: Live tensors while each node runs, MiB.
        macs: Multiply-accumulates of each node.
        flops: Floating-point operations of each node.
        traffic_mb: Least memory traffic of each node, MiB.
        kernel: In whose kernel each node runs: its own, or that of the last node of those that a compiler fused.

    Shapes:
        All arrays: [n_nodes].
    """

    prediction: Prediction
    graph: Graph
    phase: npt.NDArray[np.int8]
    time_ms: FloatArray
    live_mb: FloatArray
    macs: FloatArray
    flops: FloatArray
    traffic_mb: FloatArray
    kernel: npt.NDArray[np.int64]


class PhysicsPredictor:
    """Sums kernel times under a launching host, replays memory, and takes energy from a power model.

    Args:
        calibration: Coefficients and errors of inference.
        training: The same of training steps.
        kernels: Learned kernel times.
        additive: Networks that correct the time of each operator where they were trained.
    """

    def __init__(
        self, calibration: Calibration, kernels: KernelModel, *, training: Calibration, additive: AdditivePredictor
    ) -> None:
        self._additive = additive
        self._calibrations = {Mode.INFERENCE: calibration, Mode.TRAINING: training}
        self._times = BestTimes(calibrations=self._calibrations, kernels=kernels, additive=additive)
        self._recent: list[CompiledGraphs] = []

    @staticmethod
    @cache
    def load() -> PhysicsPredictor:
        """The shipped predictor, read once per process."""
        training = Calibration.read(TRAINING_ARTEFACT_PATH)
        return PhysicsPredictor(
            Calibration.read(), load_kernel_model(), training=training, additive=AdditivePredictor.load()
        )

    def predict(
        self,
        graph: Graph,
        *,
        batches: Sequence[int],
        devices: Sequence[DeviceSpec],
        conditions: Conditions,
        software: Software = DEFAULT_SOFTWARE,
        mig_policy: MigPolicy = MigPolicy.SAFE,
    ) -> list[Prediction]:
        """Predict a graph on every device at every batch, all batches of the first device first.

        Raises:
            UnsupportedError: ``runtime.unsupported`` for a compiled model on a device that no compiler writes for;
                ``software.impossible`` where the software cannot drive the device or the runtime;
                ``graph.fixed_batch`` where the graph holds for another batch only; ``graph.empty`` where
                no operator runs; ``graph.too_large`` where its tensors pass a petabyte; in training also
                ``training.nothing_to_train``, ``training.no_loss`` and ``optimizer.complex``.
        """
        (predictions,) = self.predict_each(
            [graph], batches=batches, devices=devices, conditions=conditions, software=software, mig_policy=mig_policy
        )
        return predictions

    def predict_each(
        self,
        graphs: Sequence[Graph],
        *,
        batches: Sequence[int],
        devices: Sequence[DeviceSpec],
        conditions: Conditions,
        software: Software = DEFAULT_SOFTWARE,
        mig_policy: MigPolicy = MigPolicy.SAFE,
    ) -> list[list[Prediction]]:
        """Predict several graphs, with all that is alike worked out for all of them at once.

        Each gets what :meth:`predict` gives it, and one that is refused ends it all.

        Raises:
            UnsupportedError: As :meth:`predict`.
        """
        for device in devices:
            check_software(driving_build(device, software), device, conditions.runtime)
        result = []
        for together in group_graphs(graphs, questions=len(batches) * len(devices)):
            with collection_paused():
                # What was prepared is gone before the collector may look at all of it.
                result += self._answer(
                    self._prepare(together, batches=batches, conditions=conditions, software=software),
                    devices,
                    mig_policy=mig_policy,
                )
        return result

    def _answer(
        self, prepared: PreparedGraphs, devices: Sequence[DeviceSpec], *, mig_policy: MigPolicy
    ) -> list[list[Prediction]]:
        """Of each graph the answers on every device at every batch."""
        memories = self._estimate_memory(prepared, devices)
        breakdowns = self._times.break_down(prepared, devices)
        on_devices = [self._on(device, prepared) for device in devices]
        return [
            [
                prediction
                for on, memory, of_graphs in zip(on_devices, own, breakdowns, strict=True)
                for prediction in self._assemble(prepared, place, on, memory, of_graphs[place], mig_policy=mig_policy)
            ]
            for place, own in enumerate(memories)
        ]

    def explain(
        self,
        graph: Graph,
        *,
        batch: int,
        device: DeviceSpec,
        conditions: Conditions,
        software: Software = DEFAULT_SOFTWARE,
        mig_policy: MigPolicy = MigPolicy.SAFE,
    ) -> Explanation:
        """Predict one configuration and keep what every node adds to it; raises as :meth:`predict`."""
        check_software(driving_build(device, software), device, conditions.runtime)
        prepared = self._prepare([graph], batches=[batch], conditions=conditions, software=software)
        ((memory,),) = self._estimate_memory(prepared, [device])
        ((breakdown,),) = self._times.break_down(prepared, [device])
        on = self._on(device, prepared)
        (prediction,) = self._assemble(prepared, 0, on, memory, breakdown, mig_policy=mig_policy)
        at, times = prepared.at, prepared.compiled.times
        fusion = prepared.compiled.plan.work.fusion
        return Explanation(
            prediction=prediction,
            graph=prepared.compiled.plan.work.sizes.graph,
            phase=prepared.compiled.phase,
            time_ms=breakdown.share_ms[0],
            live_mb=memory.live.live_bytes[0] / BYTES_PER_MIB,
            macs=at.macs[0] * times,
            flops=at.flops[0] * times,
            traffic_mb=(at.bytes_read[0] + at.bytes_written[0]) * times / BYTES_PER_MIB,
            kernel=np.arange(len(times)) if fusion is None else fusion.kernel,
        )

    def load_of(
        self,
        graph: Graph,
        *,
        batch: int,
        device: DeviceSpec,
        conditions: Conditions,
        software: Software = DEFAULT_SOFTWARE,
    ) -> BoardLoad:
        """What a call asks of the board, from which its power follows at any time; raises as :meth:`predict`."""
        check_software(driving_build(device, software), device, conditions.runtime)
        prepared = self._prepare([graph], batches=[batch], conditions=conditions, software=software)
        ((breakdown,),) = self._times.break_down(prepared, [device])
        kernel = _kernels_of(prepared, slice(0, len(prepared.compiled.times)))
        return BoardLoad.of(breakdown, prepared.work_on(device), kernel=kernel)

    def _prepare(
        self, graphs: Sequence[Graph], *, batches: Sequence[int], conditions: Conditions, software: Software
    ) -> PreparedGraphs:
        """Lay out the work; what does not depend on the batch is kept for the graphs seen last one by one."""
        for graph in graphs:
            check_answerable(graph, batches)
        compiled = next((held for held in self._recent if held.is_for(graphs, conditions, software)), None)
        if compiled is None:
            with collection_paused():
                compiled = CompiledGraphs.of(graphs, conditions, software)
            if len(graphs) == 1:
                self._recent = [compiled, *self._recent[: _KEPT_GRAPHS - 1]]
        return PreparedGraphs.of(compiled, batches=batches, conditions=conditions)

    def _estimate_memory(self, prepared: PreparedGraphs, devices: Sequence[DeviceSpec]) -> list[list[MemoryEstimate]]:
        """Of each graph the memory on each device."""
        calibration = self._calibrations[prepared.conditions.mode]
        headrooms = [
            Headroom(
                share=math.exp(memory_spreads(prepared, calibration)[1]) - 1.0,
                fixed_mb=calibration.context_margins_mb(device, prepared.compiled.software)[1],
            )
            for device in devices
        ]
        return [
            estimate_memory(
                member.timeline,
                list(prepared.batches),
                devices,
                layout=prepared.conditions.layout,
                software=prepared.compiled.software,
                headrooms=headrooms,
                is_captured=prepared.conditions.runtime is Runtime.CUDA_GRAPH,
            )
            for member in prepared.compiled.members
        ]

    def _on(self, device: DeviceSpec, prepared: PreparedGraphs) -> _OnDevice:
        return _OnDevice(
            device=device,
            software=driving_build(device, prepared.compiled.software),
            work=prepared.work_on(device),
            heads=find_plain_heads(prepared, device, self._calibrations[prepared.conditions.mode].rates),
            networks={
                precision: self._additive.on(device, conditions, prepared.compiled.plan)
                for precision, conditions in prepared.as_run.items()
            },
        )

    def _assemble(
        self,
        prepared: PreparedGraphs,
        place: int,
        on: _OnDevice,
        memory: MemoryEstimate,
        breakdown: LatencyBreakdown,
        *,
        mig_policy: MigPolicy,
    ) -> list[Prediction]:
        """Answers for one of the graphs on a device, at each batch."""
        calibration, compiled = self._calibrations[prepared.conditions.mode], prepared.compiled.members[place]
        device, software, latency_ms = on.device, on.software, breakdown.latency_ms
        load = BoardLoad.of(breakdown, on.work.take(compiled.nodes), kernel=_kernels_of(prepared, compiled.nodes))
        energy_j = load.energy_j(calibration.power, device, latency_ms)
        is_corrected = breakdown.knows_interval
        grounds = {
            corrected: TimeGrounds.of(
                prepared,
                compiled,
                device,
                breakdown,
                sums=calibration,
                networks=on.networks[compiled.runs_in],
                is_corrected=corrected,
            )
            for corrected in set(is_corrected.tolist())
        }
        spreads = [own.spread for own in grounds.values()]
        spread = (
            spreads[0] if len(spreads) == 1 else np.where(is_corrected, grounds[True].spread, grounds[False].spread)
        )
        latency_ends, energy_ends = time_and_energy_intervals(
            breakdown,
            energy_j,
            load,
            calibration.power,
            device,
            spread=spread,
            power_spread=calibration.power_spread_on(device),
            most_times=most_times(prepared, compiled, breakdown),
        )
        memory_ends, needed_ends = (
            memory_interval(
                figure_mb,
                memory,
                device,
                software,
                calibration=calibration,
                spreads=memory_spreads(prepared, calibration),
                more_mb=compiled.more_mb,
            )
            for figure_mb in (memory.memory_mb, memory.needed_mb)
        )
        warnings = {
            corrected: warn_of_question(
                prepared,
                compiled,
                device,
                is_measured=own.is_measured,
                unseen=own.unseen,
                power=calibration.power,
                power_devices=calibration.power_devices,
            )
            for corrected, own in grounds.items()
        }
        conditions = prepared.as_run[compiled.runs_in]
        rows = zip(
            prepared.batches,
            prepared.inputs[place],
            prepared.macs[place],
            latency_ms.tolist(),
            energy_j.tolist(),
            memory.memory_mb.tolist(),
            _by_batch(*memory.parts_mb.values()),
            *(_by_batch(*ends) for ends in (latency_ends, energy_ends, memory_ends, needed_ends)),
            load.busy_share.tolist(),
            share_of_copying(compiled, breakdown).tolist(),
            share_of_heads(compiled, breakdown, on.heads).tolist(),
            is_corrected.tolist(),
            strict=True,
        )
        predictions = []
        no_slice = NoSlice.why(device)
        infos: dict[tuple[bool, tuple[str, ...]], PredictorInfo] = {}
        for (
            batch, inputs, macs, latency, energy, memory_mb, parts, latency_in, energy_in, memory_in, needed_in, busy,
            copying, head_share, corrected,
        ) in rows:  # fmt: skip
            of_row = warn_of_answer(
                compiled.source,
                batch,
                device,
                busy_share=busy,
                copying_share=copying,
                head_share=head_share,
                needed_mb=needed_in,
            )
            key = corrected, of_row
            if key not in infos:
                infos[key] = PredictorInfo(
                    name=grounds[corrected].predictor,
                    version=calibration.version,
                    labels=grounds[corrected].labels,
                    warnings=(*warnings[corrected], *of_row),
                )
            predictions.append(
                Prediction(
                    model=compiled.model,
                    device=device.name,
                    conditions=conditions,
                    software=software,
                    batch=batch,
                    inputs=inputs,
                    macs=macs,
                    latency_ms=latency,
                    energy_j=energy,
                    memory_mb=memory_mb,
                    memory_parts_mb=dict(zip(memory.parts_mb, parts, strict=True)),
                    needed_mb=needed_in,
                    mig=choose_mig(memory_mb, device, interval_high_mb=needed_in[1], policy=mig_policy),
                    no_slice=no_slice,
                    intervals={
                        "latency_ms": latency_in,
                        "energy_j": energy_in,
                        "memory_mb": memory_in,
                    },
                    predictor=infos[key],
                )
            )
        return predictions


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _OnDevice:
    """What holds on one device of all graphs that are predicted together.

    Args:
        device: The device.
        software: What drives it.
        work: What each node does there.
        heads: What :func:`~dippm.predictors.physics_warnings.find_plain_heads` finds.
        networks: The networks that answer, by the precision that graphs are run in.
    """

    device: DeviceSpec
    software: Software
    work: KernelWork
    heads: tuple[IndexArray, npt.NDArray[np.bool_]]
    networks: Mapping[Precision, AdditivePredictor]


def _by_batch(*figures: FloatArray) -> Iterator[tuple[float, ...]]:
    """Several figures at each batch, [B] each."""
    return zip(*(figure.tolist() for figure in figures), strict=True)


def _kernels_of(prepared: PreparedGraphs, nodes: slice) -> npt.NDArray[np.int64] | None:
    """Of a compiled graph the place of the last node of each node's kernel, -1 for none."""
    fusion = prepared.compiled.plan.work.fusion
    if fusion is None:
        return None
    kernel = fusion.kernel[nodes]
    return np.where(kernel >= 0, kernel - nodes.start, -1)
