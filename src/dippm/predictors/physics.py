"""The shipped predictor: the costs of all operators, summed, with a calibrated interval.

Where an additive network was trained on the device and the conditions that are asked for, it corrects the time of each
operator; everywhere else the sum stands as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.energy import power_w
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import LatencyBreakdown, break_down_each
from dippm.costs.memory import Headroom, MemoryEstimate, estimate_memory, live_memory
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind
from dippm.placement.mig import MigPolicy, choose_mig
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.answerable import check_answerable
from dippm.predictors.calibration import CERTAIN_PARTS, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics_warnings import warn_of_answer, warn_of_question
from dippm.predictors.prediction import Prediction, PredictorInfo
from dippm.predictors.prepared_graph import (
    CompiledGraphs,
    PreparedGraphs,
    group_graphs,
)
from dippm.processes.collection_pause import collection_paused

__all__ = ["Explanation", "PhysicsPredictor"]

FloatArray = npt.NDArray[np.float64]

_NAME = "physics-0"
_CORRECTED_NAME = "additive-1"
# The networks' 90 % quantile on a card that was left out, of the two of which one predicts the other: see
# docs/reports/inference_step.md. It holds for their architectures; elsewhere nothing shows that they beat the sum.
_UNSEEN_DEVICE = 0.14
_KEPT_GRAPHS = 8
# An operator without a rule may cost many times its bytes: all of its predicted time counts as doubt.
_DOUBT_PER_UNSUPPORTED_SHARE = 1.0
_DOUBT_PER_UNMEASURED_SHARE = 1.0
# No process is without a CUDA context; that it is never less than half of the estimate is assumed.
_LEAST_CONTEXT = 0.5
# Of captured graphs, and of a format that a device only emulates, nothing was measured: assumed, not fitted.
_DOUBT_OF_OTHER_RUNTIME = 0.3
_DOUBT_OF_EMULATION = math.log(2.0)


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
        self._kernels = kernels
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
            UnsupportedError: ``runtime.unsupported`` for a compiled model where none was measured like that;
                ``software.impossible`` where the software cannot drive the device or the runtime;
                ``graph.fixed_batch`` where the graph holds for another batch only; ``graph.empty`` where
                no operator runs; ``graph.too_large`` where its tensors pass a petabyte; in training also
                ``training.nothing_to_train`` and ``training.no_loss``.
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
            check_software(software, device, conditions.runtime)
        result = []
        for together in group_graphs(graphs, questions=len(batches) * len(devices)):
            prepared = self._prepare(together, batches=batches, conditions=conditions, software=software)
            memories = self._estimate_memory(prepared, devices)
            breakdowns = self._break_down(prepared, devices)
            flops = [prepared.fp32_flops(device) for device in devices]
            result += [
                [
                    prediction
                    for device, memory, of_graphs, of_nodes in zip(devices, own, breakdowns, flops, strict=True)
                    for prediction in self._assemble(
                        prepared, place, device, memory, of_graphs[place], of_nodes, mig_policy=mig_policy
                    )
                ]
                for place, own in enumerate(memories)
            ]
        return result

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
        check_software(software, device, conditions.runtime)
        prepared = self._prepare([graph], batches=[batch], conditions=conditions, software=software)
        ((memory,),) = self._estimate_memory(prepared, [device])
        ((breakdown,),) = self._break_down(prepared, [device])
        (prediction,) = self._assemble(
            prepared, 0, device, memory, breakdown, prepared.fp32_flops(device), mig_policy=mig_policy
        )
        at, times = prepared.at, prepared.compiled.times
        (compiled,) = prepared.compiled.members
        return Explanation(
            prediction=prediction,
            graph=prepared.compiled.plan.work.sizes.graph,
            phase=prepared.compiled.phase,
            time_ms=breakdown.share_ms[0],
            live_mb=live_memory(compiled.timeline, [batch]).live_bytes[0] / 2**20,
            macs=at.macs[0] * times,
            flops=at.flops[0] * times,
            traffic_mb=(at.bytes_read[0] + at.bytes_written[0]) * times / 2**20,
        )

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
                share=math.exp(calibration.memory_spread) - 1.0,
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
            )
            for member in prepared.compiled.members
        ]

    def _break_down(self, prepared: PreparedGraphs, devices: Sequence[DeviceSpec]) -> list[list[LatencyBreakdown]]:
        """On each device the time of each graph."""
        is_covered = [self._additive.covers(device, prepared.conditions) for device in devices]
        if prepared.conditions.runtime is Runtime.COMPILE and not all(is_covered):
            raise _no_compiled(prepared.conditions, devices[is_covered.index(False)])
        summed = break_down_each(
            prepared.compiled.plan,
            prepared.at,
            devices=[device for device, covered in zip(devices, is_covered, strict=True) if not covered],
            conditions=prepared.conditions,
            rates=self._calibrations[prepared.conditions.mode].rates,
            kernels=self._kernels,
            times=prepared.compiled.times,
        )
        others = iter(summed)
        return [
            self._corrected(prepared, device) if covered else next(others)
            for device, covered in zip(devices, is_covered, strict=True)
        ]

    def _corrected(self, prepared: PreparedGraphs, device: DeviceSpec) -> list[LatencyBreakdown]:
        compiled = prepared.compiled
        return self._additive.break_down_kernels(
            compiled.plan,
            prepared.at,
            device,
            prepared.conditions,
            phase=compiled.phase,
            times=compiled.times,
            host=self._calibrations[prepared.conditions.mode].rates,
        )

    def _assemble(
        self,
        prepared: PreparedGraphs,
        place: int,
        device: DeviceSpec,
        memory: MemoryEstimate,
        breakdown: LatencyBreakdown,
        fp32_flops: FloatArray,
        *,
        mig_policy: MigPolicy,
    ) -> list[Prediction]:
        """Answers for one of the graphs on a device, at each batch."""
        calibration, compiled = self._calibrations[prepared.conditions.mode], prepared.compiled.members[place]
        latency_ms = breakdown.latency_ms
        busy_ms = np.maximum(breakdown.busy_ms.sum(axis=1), 1e-9)
        busy_share = np.minimum(busy_ms / latency_ms, 1.0)
        flops = fp32_flops[:, compiled.nodes].sum(axis=1)
        power = power_w(
            calibration.power,
            device,
            busy_share=busy_share,
            flops_per_s=flops / busy_ms * 1e3,
            bytes_per_s=prepared.traffic_bytes[place] / busy_ms * 1e3,
        )
        energy_j = power * latency_ms / 1e3
        unsupported, unmeasured = (
            breakdown.share_ms[:, chosen[compiled.nodes]].sum(axis=1) / latency_ms
            for chosen in (prepared.compiled.is_unsupported, prepared.compiled.is_unmeasured)
        )
        is_corrected = breakdown.half_width is not None
        is_measured = self._additive.is_measured(device, prepared.conditions) or (
            not is_corrected
            and device.name in calibration.measured_devices
            and prepared.conditions.precision.value in calibration.measured_precisions
            and prepared.conditions.runtime is Runtime.EAGER
        )
        name, version, labels = _NAME, calibration.version, calibration.labels
        own_spread: float | FloatArray = (
            calibration.latency_spread if is_measured else calibration.latency_spread_elsewhere
        )
        is_known_runtime = prepared.conditions.runtime is Runtime.EAGER
        unseen: frozenset[OpKind] = frozenset()
        if breakdown.half_width is not None:
            artefact = self._additive.artefact(prepared.conditions)
            name, labels = _CORRECTED_NAME, f"time: {artefact.labels}; {labels}"
            own_spread, is_known_runtime = breakdown.half_width, True
            if not is_measured:
                is_sibling = self._additive.is_sibling(device, prepared.conditions)
                least = _UNSEEN_DEVICE if is_sibling else calibration.latency_spread_elsewhere
                own_spread = np.maximum(own_spread, least)
            unseen = self._additive.unseen_kinds(prepared.conditions)
            is_unseen = prepared.compiled.is_of(unseen)[compiled.nodes]
            unmeasured = unmeasured + breakdown.share_ms[:, is_unseen].sum(axis=1) / latency_ms
        spread = (
            own_spread
            + _DOUBT_PER_UNSUPPORTED_SHARE * unsupported
            + _DOUBT_PER_UNMEASURED_SHARE * unmeasured
            + (0.0 if is_known_runtime else _DOUBT_OF_OTHER_RUNTIME)
            + (0.0 if prepared.has_format(device) else _DOUBT_OF_EMULATION)
        )
        warnings = warn_of_question(
            prepared,
            compiled,
            device,
            is_measured=is_measured,
            unseen=unseen,
            power_devices=calibration.power_devices,
        )
        # The errors of the device's time, of the host's and of the power are independent of each other.
        below, above = (
            np.hypot(spread, np.log(np.maximum(latency_ms, 1e-9) / np.maximum(end, 1e-9)))
            for end in (breakdown.fast_host_ms, breakdown.slow_host_ms)
        )
        latency_low, latency_high = latency_ms / np.exp(below), latency_ms * np.exp(above)
        energy_low = energy_j / np.exp(np.hypot(below, calibration.power_spread))
        energy_high = energy_j * np.exp(np.hypot(above, calibration.power_spread))
        # A board draws no more than its limit, however long it takes.
        most_j = device.board_power_w * latency_high / 1e3
        energy_high = np.maximum(np.minimum(energy_high, most_j), energy_j)
        margins_mb = calibration.context_margins_mb(device, prepared.compiled.software)
        memory_low, memory_high = _memory_interval(memory, calibration, margins_mb)
        parts_mb = [
            dict(zip(memory.parts_mb, row, strict=True))
            for row in np.stack(list(memory.parts_mb.values()), axis=1).tolist()
        ]
        rows = zip(
            prepared.batches,
            prepared.inputs[place],
            prepared.macs[place],
            latency_ms.tolist(),
            energy_j.tolist(),
            memory.memory_mb.tolist(),
            parts_mb,
            zip(latency_low.tolist(), latency_high.tolist(), strict=True),
            zip(energy_low.tolist(), energy_high.tolist(), strict=True),
            zip(memory_low.tolist(), memory_high.tolist(), strict=True),
            busy_share.tolist(),
            strict=True,
        )
        predictions = []
        infos: dict[tuple[str, ...], PredictorInfo] = {}
        for batch, inputs, macs, latency, energy, memory_mb, parts, latency_in, energy_in, memory_in, busy in rows:
            of_row = warn_of_answer(device, busy_share=busy, memory_interval_mb=memory_in)
            if of_row not in infos:
                infos[of_row] = PredictorInfo(name=name, version=version, labels=labels, warnings=(*warnings, *of_row))
            predictions.append(
                Prediction(
                    model=compiled.model,
                    device=device.name,
                    conditions=prepared.conditions,
                    software=prepared.compiled.software,
                    batch=batch,
                    inputs=inputs,
                    macs=macs,
                    latency_ms=latency,
                    energy_j=energy,
                    memory_mb=memory_mb,
                    memory_parts_mb=parts,
                    mig=choose_mig(memory_mb, device, interval_high_mb=memory_in[1], policy=mig_policy),
                    intervals={"latency_ms": latency_in, "energy_j": energy_in, "memory_mb": memory_in},
                    predictor=infos[of_row],
                )
            )
        return predictions


def _no_compiled(conditions: Conditions, device: DeviceSpec) -> UnsupportedError:
    return UnsupportedError(
        f"Compiled models were measured in inference, amp, channels first, on a device with tensor cores for half "
        f"precision. Got {conditions.mode}, {conditions.precision}, {conditions.layout} on {device.name} instead.",
        code="runtime.unsupported",
        cure="Use the eager runtime, or amp, nchw and inference on a device with tensor cores.",
    )


def _memory_interval(
    memory: MemoryEstimate, calibration: Calibration, margins_mb: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Weights, gradients and state are exact; what lies beside tensors is off by so many MiB, the rest by a factor."""
    parts = memory.parts_mb
    certain = sum((parts[name] for name in CERTAIN_PARTS if name in parts), np.zeros(len(memory.memory_mb)))
    loose = memory.memory_mb - parts["context"] - certain
    low = loose * (1.0 - math.exp(-calibration.memory_spread_low)) + margins_mb[0]
    high = loose * (math.exp(calibration.memory_spread) - 1.0) + margins_mb[1]
    least = certain + _LEAST_CONTEXT * parts["context"]
    return np.maximum(memory.memory_mb - low, least), memory.memory_mb + high
