"""A graph made ready to be predicted: laid out once, evaluated at its batches, and not yet on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Arithmetic, Precision, stored_half
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import Software
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.graph import RECURRENT_KINDS, DType, Graph, OpKind
from dippm.graph.passes.unfuse_attention import unfuse_attention
from dippm.predictors.prediction import ModelInfo

__all__ = ["UNMEASURED_KINDS", "CompiledGraph", "PreparedGraph", "sum_over_nodes"]

FloatArray = npt.NDArray[np.float64]

# Operators whose rule no measurement stands behind: neither a kernel table nor any model of the fit runs them much.
UNMEASURED_KINDS = RECURRENT_KINDS | {
    OpKind.SORT, OpKind.CUMULATIVE, OpKind.FFT, OpKind.GRID_SAMPLE, OpKind.SCATTER, OpKind.QUANTIZE, OpKind.DEQUANTIZE,
}  # fmt: skip
_UNSUPPORTED_KINDS = frozenset({OpKind.UNKNOWN, OpKind.CONTROL_FLOW})
_FULL_PRECISIONS = frozenset({Precision.FP32, Precision.FP32_STRICT, Precision.TF32})
_TENSOR_PEAKS = {
    Arithmetic.TF32: "tf32_tensor",
    Arithmetic.FP16: "fp16_tensor",
    Arithmetic.BF16: "bf16_tensor",
    Arithmetic.INT8: "int8_tensor",
}
_FORMATS = {
    Precision.BF16: ("bf16_tensor",),
    Precision.AMP_BF16: ("bf16_tensor",),
    Precision.FP16: ("fp16_tensor", "fp16"),
    Precision.AMP: ("fp16_tensor", "fp16"),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompiledGraph:
    """What depends on neither batch nor device.

    Args:
        source: The graph that was given.
        graph: The same as the software runs it.
        conditions: Conditions of the run.
        software: The software.
        training: The whole step, in training.
        plan: Its kernels.
        timeline: Its memory.
        is_unsupported: Nodes without a rule of their own.
        is_unmeasured: Nodes whose rule no measurement stands behind.
        kept_half: The 16-bit format that most weights are stored in, and keep at a precision of 32 bits; None where
            they are not, or the precision is another.
        phase: Phase of each node.
        times: How often each node runs.
        nodes_of: Positions of the nodes of each kind that it has.
        model: What is said of the model.
    """

    source: Graph
    graph: Graph
    conditions: Conditions
    software: Software
    training: TrainingGraph | None
    plan: KernelPlan
    timeline: MemoryTimeline
    is_unsupported: npt.NDArray[np.bool_]
    is_unmeasured: npt.NDArray[np.bool_]
    kept_half: DType | None
    phase: npt.NDArray[np.int8]
    times: FloatArray
    nodes_of: Mapping[OpKind, IndexArray]
    model: ModelInfo

    @classmethod
    def of(cls, source: Graph, conditions: Conditions, software: Software) -> CompiledGraph:
        """Lay out a graph for the software that runs it under these conditions."""
        graph = source if software.fuses_attention else unfuse_attention(source)
        if conditions.mode is Mode.TRAINING:
            settings = TrainingSettings(
                optimizer=conditions.optimizer or Optimizer.MOMENTUM,
                precision=conditions.precision,
                accumulation=conditions.accumulation,
                is_checkpointed=conditions.is_checkpointed,
                keeps_gradients=software.keeps_gradients,
            )
            step = make_training_graph(graph, settings)
            training: TrainingGraph | None = step
            nodes, phase, times = step.graph.nodes, step.phase, step.times
            work = Workload.from_graph(step.graph, step.precision)
            plan = KernelPlan.from_workload(work, is_backward=step.phase == Phase.BACKWARD)
        else:
            training = None
            nodes, times = graph.nodes, np.ones(len(graph.nodes))
            phase = np.full(len(nodes), Phase.FORWARD, dtype=np.int8)
            work = Workload.from_graph(graph, conditions.precision)
            plan = KernelPlan.from_workload(work)
        nodes_of = _by_kind(work.sizes)
        return cls(
            source=source,
            graph=graph,
            conditions=conditions,
            software=software,
            training=training,
            plan=plan,
            timeline=MemoryTimeline.from_workload(work),
            is_unsupported=_is_any(nodes_of, _UNSUPPORTED_KINDS, count=len(nodes)),
            is_unmeasured=_is_any(nodes_of, UNMEASURED_KINDS, count=len(nodes)),
            kept_half=stored_half(graph) if conditions.precision in _FULL_PRECISIONS else None,
            phase=phase,
            times=times,
            nodes_of=nodes_of,
            model=ModelInfo.of(source),
        )

    def is_of(self, kinds: AbstractSet[OpKind]) -> npt.NDArray[np.bool_]:
        """Which nodes are of one of these kinds, [n_nodes]."""
        return _is_any(self.nodes_of, kinds, count=len(self.times))

    def is_for(self, conditions: Conditions, software: Software) -> bool:
        """Whether it holds under these conditions: layout and runtime change nothing of it."""
        alike = replace(conditions, layout=self.conditions.layout, runtime=self.conditions.runtime)
        return (self.conditions, self.software) == (alike, software)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedGraph:
    """What does not depend on the device.

    Args:
        compiled: The graph, laid out.
        batches: Samples per call, [B].
        conditions: Conditions of the run.
        at: Its work at these batches.
        inputs: Shape of each input at each batch.
        macs: Multiply-accumulates at each batch.
        traffic_bytes: Bytes that its kernels read and write, [B].
    """

    compiled: CompiledGraph
    batches: tuple[int, ...]
    conditions: Conditions
    at: WorkloadAt
    inputs: tuple[Mapping[str, tuple[int, ...]], ...]
    macs: tuple[int, ...]
    traffic_bytes: FloatArray

    @classmethod
    def of(cls, compiled: CompiledGraph, *, batches: Sequence[int], conditions: Conditions) -> PreparedGraph:
        """Evaluate a laid-out graph at some batches."""
        at = compiled.plan.work.at(list(batches))
        tensors = [compiled.graph.tensors[index] for index in compiled.graph.inputs]
        return cls(
            compiled=compiled,
            batches=tuple(batches),
            conditions=conditions,
            at=at,
            inputs=tuple(
                {tensor.name: tuple(dim.at(batch) for dim in tensor.shape) for tensor in tensors} for batch in batches
            ),
            macs=tuple(int(macs) for macs in sum_over_nodes(at.macs, compiled.times).tolist()),
            traffic_bytes=sum_over_nodes(at.bytes_read + at.bytes_written, compiled.times)
            + (at.casts.bytes_read + at.casts.bytes_written).sum(axis=1),
        )

    def has_format(self, device: DeviceSpec) -> bool:
        """Whether the device has units for the 16-bit format of the precision, if it has one."""
        needed = _FORMATS.get(self.conditions.precision)
        return needed is None or any(peak in device.peak_tflops for peak in needed)

    def fp32_equivalent(self, device: DeviceSpec) -> FloatArray:
        """Weight of a FLOP of each node as a share of the peak that it uses, in FLOPs of FP32.

        Shapes:
            Result: [n_nodes].
        """
        fp32 = device.peak_tflops["fp32"]
        peaks = [device.peak_tflops.get(_TENSOR_PEAKS.get(value, "fp32"), fp32) for value in Arithmetic]
        return fp32 / np.array(peaks)[self.compiled.plan.arithmetic]


def _by_kind(sizes: GraphSizes) -> dict[OpKind, IndexArray]:
    """Positions of the nodes of each kind that the graph has."""
    kinds = tuple(OpKind)
    kind = sizes.arrays.kind
    return {kinds[number]: np.flatnonzero(kind == number) for number in np.unique(kind).tolist()}


def _is_any(nodes_of: Mapping[OpKind, IndexArray], kinds: AbstractSet[OpKind], *, count: int) -> npt.NDArray[np.bool_]:
    """Which nodes are of one of some kinds, [count]."""
    result = np.zeros(count, dtype=np.bool_)
    for kind in kinds & nodes_of.keys():
        result[nodes_of[kind]] = True
    return result


def sum_over_nodes(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted sums over the nodes, [B]; a product would wake BLAS's threads, which a busy machine makes wait."""
    total: FloatArray = (values * weights).sum(axis=1)
    return total
