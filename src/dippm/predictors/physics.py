"""The shipped predictor: the costs of all operators, summed, with a calibrated interval.

Where an additive network was trained on the device and the conditions that are asked for, it corrects the time of each
operator; everywhere else the sum stands as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.memory import Headroom, MemoryEstimate, estimate_memory_each
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software, driving_build
from dippm.devices import DeviceSpec
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.answerable import check_answerable
from dippm.predictors.best_times import BestTimes
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics_answers import DeviceAnswers
from dippm.predictors.physics_doubt import memory_spreads
from dippm.predictors.prediction import Prediction
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
    def load(folder: Path = ARTEFACT_FOLDER) -> PhysicsPredictor:
        """Read the artefacts of a folder, the shipped ones where none is named; once per process.

        Kernel times are the shipped ones always.
        """
        inference, training = (Calibration.read(folder / path.name) for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH))
        return PhysicsPredictor(
            inference, load_kernel_model(), training=training, additive=AdditivePredictor.load(folder)
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
        of_devices = [
            self._on(device, prepared, [own[number] for own in memories], breakdown).answers(mig_policy)
            for number, (device, breakdown) in enumerate(
                zip(devices, self._times.break_down(prepared, devices), strict=True)
            )
        ]
        return [[answer for own in of_devices for answer in own[place]] for place in range(len(memories))]

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
        (breakdown,) = self._times.break_down(prepared, [device])
        ((prediction,),) = self._on(device, prepared, [memory], breakdown).answers(mig_policy)
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
        (breakdown,) = self._times.break_down(prepared, [device])
        fusion = prepared.compiled.plan.work.fusion
        kernel = None if fusion is None else fusion.kernel
        return BoardLoad.of(breakdown, prepared.work_on(device), kernel=kernel).of_only_call()

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
        return estimate_memory_each(
            [member.timeline for member in prepared.compiled.members],
            list(prepared.batches),
            devices,
            layout=prepared.conditions.layout,
            software=prepared.compiled.software,
            headrooms=headrooms,
            is_captured=prepared.conditions.runtime is Runtime.CUDA_GRAPH,
        )

    def _on(
        self,
        device: DeviceSpec,
        prepared: PreparedGraphs,
        memories: Sequence[MemoryEstimate],
        breakdown: LatencyBreakdown,
    ) -> DeviceAnswers:
        return DeviceAnswers(
            prepared=prepared,
            device=device,
            memories=memories,
            breakdown=breakdown,
            calibration=self._calibrations[prepared.conditions.mode],
            networks={
                precision: self._additive.on(device, conditions, prepared.compiled.plan)
                for precision, conditions in prepared.as_run.items()
            },
        )
