"""Graphs made ready to be predicted: laid out once, evaluated at their batches, and not yet on any device.

Several are laid out and evaluated in the same arrays: most of what a graph costs is what an array operation costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dippm.costs.autocast import own_formats
from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.depthwise import is_depthwise
from dippm.costs.device_sheets import formats_on_tensor_cores
from dippm.costs.edges import IndexArray
from dippm.costs.energy import KernelWork
from dippm.costs.fusion import EAGER_PART
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.numbering import is_first, number_values
from dippm.costs.open_loops import most_runs_of
from dippm.costs.packed_weights import PackedWeights
from dippm.costs.polynomial import scatter_add
from dippm.costs.precision import (
    Arithmetic,
    Precision,
    autocast_type,
    precision_of_run,
    stored_half,
    whole_model_type,
)
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import Software
from dippm.costs.software_graph import graph_of_release
from dippm.costs.tensor_rates import fp16_operations, of_every_format
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.features.physical import PhysicalPlan
from dippm.graph import CONTRACTION_KINDS, RECURRENT_KINDS, DType, Graph, GraphArrays, OpKind, TensorRole
from dippm.graph.codes import mark
from dippm.graph.linear_layers import count_quantised
from dippm.predictors.answerable import UNSUPPORTED_KINDS
from dippm.predictors.prediction import ModelInfo
from dippm.predictors.weight_reads import WeightReads, find_weight_reads
from dippm.units import BYTES_PER_MIB

__all__ = ["UNMEASURED_KINDS", "CompiledGraph", "CompiledGraphs", "PreparedGraphs", "group_graphs"]

FloatArray = npt.NDArray[np.float64]

# Operators whose rule no measurement stands behind: neither a kernel table nor any model of the fit runs them much.
UNMEASURED_KINDS = RECURRENT_KINDS | {
    OpKind.SORT, OpKind.CUMULATIVE, OpKind.FFT, OpKind.GRID_SAMPLE, OpKind.SCATTER, OpKind.QUANTIZE, OpKind.DEQUANTIZE,
}  # fmt: skip
# Operators of all graphs that are laid out together, times batches and devices: twice as many take 70 MiB more and save
# a fiftieth of the time.
_AT_ONCE = 2**16
_KINDS = tuple(OpKind)
# Which phases are compiled, each by itself: the update is not the model's.
_PART_OF_PHASE = np.array([{Phase.FORWARD: 0, Phase.BACKWARD: 1}.get(phase, -1) for phase in Phase])
_IS_PARAMETER = mark(TensorRole, [TensorRole.PARAMETER])
_IS_FLOAT32 = mark(DType, [DType.FLOAT32])
_UNITS = {DType.BFLOAT16: {"bf16_tensor"}, DType.FLOAT16: {"fp16_tensor", "fp16"}}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompiledGraph:
    """One graph of those that are laid out together.

    Args:
        source: The graph that was given.
        graph: The same as the software runs it.
        timeline: Its memory, that of the whole step in training.
        runs_in: The precision that it is run in: where 16 bits are what its weights are stored in and keep, and nothing
            casts them, that of a model of such weights.
        kept_half: The 16-bit format that most weights are stored in, and keep at a precision of 32 bits; None where
            they are not, or the precision is another.
        is_halved: Whether it was read in FP32 for a precision of 16 bits, and so does not show what runs in FP32 beside
            them.
        stores_fp8: Whether some of its weights are stored in FP8.
        stores_packed: Whether something of what it stores takes fewer than 16 bits.
        widened_mb: What its frozen weights of 16 bits would take more in FP32, MiB, where adapters beside quantised
            ones are trained: PEFT may make them so. 0 elsewhere.
        uncached_mb: What autocast would keep of its casts of weights at inference under ``torch.no_grad``, MiB, where
            it keeps nothing under ``torch.inference_mode``, which is predicted. 0 elsewhere.
        untrained_mb: What its weights take that could be trained and get no gradient, MiB; 0 at inference.
        untrained: The name of the largest of them; empty where there is none.
        nodes: Its nodes among those of all graphs.
        kinds: Kinds of its nodes.
        own_formats: Formats of those parts for which the model itself switches autocast on.
        model: What is said of the model.
    """

    source: Graph
    graph: Graph
    timeline: MemoryTimeline
    runs_in: Precision
    kept_half: DType | None
    is_halved: bool
    stores_fp8: bool
    stores_packed: bool
    widened_mb: float
    uncached_mb: float
    untrained_mb: float
    untrained: str
    nodes: slice
    kinds: frozenset[OpKind]
    own_formats: frozenset[DType]
    model: ModelInfo

    @property
    def more_mb(self) -> float:
        """What code that is not known may take beside what is predicted, MiB."""
        return self.widened_mb + self.uncached_mb

    def has_format(self, device: DeviceSpec) -> bool:
        """Whether the device has units for the 16-bit format that it is run in, if there is one."""
        return self.missing_format(device) is None

    def missing_format(self, device: DeviceSpec) -> DType | None:
        """The 16-bit format that it is run in, or a part of it, and that the device has no units for, if any."""
        of_run = autocast_type(self.runs_in) or whole_model_type(self.runs_in)
        needed = ([] if of_run is None else [of_run]) + sorted(self.own_formats & _UNITS.keys())
        return next((each for each in needed if not device.peak_tflops.keys() & _UNITS[each]), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledGraphs:
    """What depends on neither batch nor device, of one or several graphs.

    Args:
        members: The graphs.
        conditions: Conditions of the run.
        software: The software.
        plan: The kernels of all graphs.
        eager: Those of the eager runtime where the plan is of compiled training steps, None elsewhere.
        in_fp32: Those of strict FP32 and of TF32 if they were run in FP32; None elsewhere.
        is_unsupported: Nodes without a rule of their own.
        most_runs: How many times as often as it is counted each node may run, see :mod:`dippm.costs.open_loops`.
        phase: Phase of each node.
        times: How often each node runs.
        nodes_of: Positions of the nodes of each kind that there is.
    """

    members: tuple[CompiledGraph, ...]
    conditions: Conditions
    software: Software
    plan: KernelPlan
    eager: KernelPlan | None
    in_fp32: KernelPlan | None
    is_unsupported: npt.NDArray[np.bool_]
    most_runs: FloatArray
    phase: npt.NDArray[np.int8]
    times: FloatArray
    nodes_of: Mapping[OpKind, IndexArray]

    @classmethod
    def of(cls, sources: Sequence[Graph], conditions: Conditions, software: Software) -> CompiledGraphs:
        """Lay out graphs for the software that runs them under these conditions."""
        graphs = [graph_of_release(source, software) for source in sources]
        steps: list[TrainingGraph] = []
        precision = conditions.precision
        if conditions.mode is Mode.TRAINING:
            settings = TrainingSettings(
                optimizer=conditions.optimizer or Optimizer.MOMENTUM,
                precision=precision,
                accumulation=conditions.accumulation,
                is_checkpointed=conditions.is_checkpointed,
                adapters=conditions.adapters,
                keeps_gradients=software.keeps_gradients,
            )
            steps = [make_training_graph(graph, settings) for graph in graphs]
            precision = settings.costed_precision
        sizes = GraphSizes.from_graphs([step.graph for step in steps] or graphs)
        count = len(sizes.nodes)
        phase = np.concatenate([step.phase for step in steps] or [np.full(count, Phase.FORWARD, dtype=np.int8)])
        work = Workload.from_sizes(sizes, precision, keeps_casts=software.keeps_casts)
        is_compiled, is_backward = conditions.runtime is Runtime.COMPILE, phase == Phase.BACKWARD
        timed = work
        if is_compiled:
            part = _PART_OF_PHASE[phase]
            # Gradients are added up outside of what is compiled.
            part[np.concatenate([step.accumulates for step in steps] or [np.zeros(count, dtype=np.bool_)])] = EAGER_PART
            timed = work.fused(part, software=software)
        nodes_of = _by_kind(sizes.arrays.kind)
        keeps_formats = whole_model_type(conditions.precision) is None
        # A step has the types that it runs in, and adapters in FP32 beside the model's own weights.
        kept_by_graphs = sizes.arrays.kept()
        given = GraphArrays.from_graphs(graphs).kept() if steps else kept_by_graphs
        rows = zip(
            sources,
            graphs,
            MemoryTimeline.of_each(timed if steps else work),
            sizes.nodes_of_graphs,
            sizes.arrays.parameters(),
            kept_by_graphs,
            map(stored_half, given),
            # A compiled model has its casts among its own operators, and no cache.
            [0.0] * len(graphs) if is_compiled else _uncached_mb(work),
            map(_untrained_of, steps) if steps else [(0.0, "")] * len(graphs),
            strict=True,
        )
        return cls(
            members=tuple(
                CompiledGraph(
                    source=source,
                    graph=graph,
                    timeline=timeline,
                    runs_in=precision_of_run(conditions.precision, half),
                    kept_half=half if keeps_formats else None,
                    is_halved=not keeps_formats and half is None,
                    stores_fp8=DType.FLOAT8 in kept,
                    stores_packed=_stores_packed(kept),
                    widened_mb=_widened_mb(source, kept) if conditions.adapters is not None else 0.0,
                    uncached_mb=uncached_mb,
                    untrained_mb=left[0],
                    untrained=left[1],
                    nodes=nodes,
                    own_formats=own_formats(graph.columns.attributes, autocast_type(conditions.precision)),
                    kinds=frozenset(_KINDS[number] for number in _numbers_of(sizes.arrays.kind[nodes])),
                    model=ModelInfo.of(
                        source,
                        parameters=sum(parameters.values()),
                        has_adapters=conditions.adapters is not None,
                        is_whole=not _stores_packed(kept),
                    ),
                )
                for source, graph, timeline, nodes, parameters, kept, half, uncached_mb, left in rows
            ),
            conditions=conditions,
            software=software,
            plan=KernelPlan.from_workload(
                timed,
                is_backward=is_backward,
                software=software,
            ),
            eager=(
                KernelPlan.from_workload(work, is_backward=is_backward, software=software)
                if is_compiled and steps
                else None
            ),
            in_fp32=(
                KernelPlan.from_workload(work.typed(Precision.FP32), is_backward=is_backward, software=software)
                if precision in (Precision.FP32_STRICT, Precision.TF32) and not is_compiled
                else None
            ),
            is_unsupported=_is_any(nodes_of, UNSUPPORTED_KINDS, count=count),
            most_runs=_most_runs(sizes, steps),
            phase=phase,
            times=np.concatenate([step.times for step in steps] or [np.ones(count)]),
            nodes_of=nodes_of,
        )

    @cached_property
    def physical(self) -> PhysicalPlan:
        """What networks read: the kernels, those of the eager runtime where the plan is of compiled training steps."""
        return self._merged(self.eager or self.plan)

    @cached_property
    def physical_in_fp32(self) -> PhysicalPlan:
        """The same of the kernels that there would be in FP32; only where there are such."""
        return self.physical if self.in_fp32 is None else self._merged(self.in_fp32)

    def _merged(self, kernels: KernelPlan) -> PhysicalPlan:
        return PhysicalPlan.from_kernels(kernels, phase=self.phase, times=self.times)

    @cached_property
    def weight_reads(self) -> IndexArray:
        """Where products read each weight first, see :func:`~dippm.predictors.weight_reads.find_weight_reads`."""
        return find_weight_reads(self.plan.work, self.is_of(CONTRACTION_KINDS))

    def is_of(self, kinds: AbstractSet[OpKind]) -> npt.NDArray[np.bool_]:
        """Which nodes are of one of these kinds, [n_nodes]."""
        return _is_any(self.nodes_of, kinds, count=len(self.times))

    def is_for(self, sources: Sequence[Graph], conditions: Conditions, software: Software) -> bool:
        """Whether it is of these graphs under these conditions: layout and whether it is captured change nothing."""
        is_compiled, was_compiled = (each.runtime is Runtime.COMPILE for each in (conditions, self.conditions))
        if len(sources) != len(self.members) or is_compiled != was_compiled:
            return False
        alike = replace(conditions, layout=self.conditions.layout, runtime=self.conditions.runtime)
        is_same = all(member.source is source for member, source in zip(self.members, sources, strict=True))
        return is_same and (self.conditions, self.software) == (alike, software)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedGraphs:
    """What does not depend on the device, of one or several graphs.

    Args:
        compiled: The graphs, laid out.
        batches: Samples per call, [B].
        conditions: Conditions of the run.
        as_run: The same by the precision that graphs are run in: a model whose weights are of 16 bits runs in these,
            whatever of 32 bits was asked for.
        at: Their work at these batches.
        inputs: Of each graph the shape of each input at each batch.
        macs: Of each graph the multiply-accumulates at each batch.
        traffic_bytes: The bytes that each node reads and writes in all its runs, casts of its inputs among them,
            [B, n_nodes].
        node_bytes: What each node reads and writes when it runs once, without its casts, [B, n_nodes].
        weights: The weights that products have to read at least once.
        packed: Those in few bits; None where there are none.
    """

    compiled: CompiledGraphs
    batches: tuple[int, ...]
    conditions: Conditions
    as_run: Mapping[Precision, Conditions]
    at: WorkloadAt
    inputs: tuple[tuple[Mapping[str, tuple[int, ...]], ...], ...]
    macs: tuple[tuple[int, ...], ...]
    traffic_bytes: FloatArray
    node_bytes: FloatArray
    weights: WeightReads
    packed: PackedWeights | None

    @classmethod
    def of(cls, compiled: CompiledGraphs, *, batches: Sequence[int], conditions: Conditions) -> PreparedGraphs:
        """Evaluate laid-out graphs at some batches."""
        at = compiled.plan.work.at(list(batches))
        nodes = [member.nodes for member in compiled.members]
        node_bytes = at.bytes_read + at.bytes_written
        moved_by_casts = (at.casts.bytes_read + at.casts.bytes_written).T
        moved = node_bytes * compiled.times + scatter_add(at.casts.node, moved_by_casts, count=node_bytes.shape[1]).T
        macs = at.macs * compiled.times
        return cls(
            compiled=compiled,
            batches=tuple(batches),
            conditions=conditions,
            as_run={
                precision: replace(conditions, precision=precision)
                for precision in dict.fromkeys(member.runs_in for member in compiled.members)
            },
            at=at,
            inputs=tuple(_inputs_of(member.graph, batches) for member in compiled.members),
            macs=tuple(tuple(map(int, macs[:, own].sum(axis=1).tolist())) for own in nodes),
            traffic_bytes=moved,
            node_bytes=node_bytes,
            weights=WeightReads.of(compiled.plan.work, at, compiled.weight_reads),
            packed=PackedWeights.of(compiled.plan, at),
        )

    def work_on(self, device: DeviceSpec) -> KernelWork:
        """What each node does on a device; depthwise convolutions of images do nothing on tensor cores.

        A gradient of weights counts as many results as its convolution has: its sums are split over as many blocks.
        Transposed convolutions of volumes count too few, one for each plane that they read.
        """
        arithmetic = self.compiled.plan.arithmetic
        tensor = _tensor_operations(device)
        is_on_tensor = tensor[arithmetic] > 0.0
        convolution = self.at.convolution
        is_gradient = self.compiled.plan.is_backward[convolution.node] & convolution.is_transposed
        is_on_tensor[convolution.node[is_depthwise(convolution, is_gradient=is_gradient)]] = False
        flops = self.at.flops * self.compiled.times
        results = np.zeros_like(flops)
        results[:, convolution.node] = (
            convolution.batch * convolution.out_channels * convolution.out_height * convolution.out_width
        )
        return KernelWork(
            runs=self.compiled.times,
            plain_flops=np.where(is_on_tensor, 0.0, flops),
            tensor_flops=np.where(is_on_tensor, flops * tensor[arithmetic], 0.0),
            traffic_bytes=self.traffic_bytes,
            results=results,
        )


def _tensor_operation(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """What an operation takes of the tensor cores' power; 0 where they do not compute in the format."""
    is_on_tensor = arithmetic in formats_on_tensor_cores(device, [arithmetic])
    return fp16_operations(device, arithmetic) if is_on_tensor else 0.0


_tensor_operations = of_every_format(_tensor_operation)


def _stores_packed(kept: Mapping[DType, int]) -> bool:
    return any(dtype.bits < DType.FLOAT16.bits for dtype in kept)


def _widened_mb(graph: Graph, kept: Mapping[DType, int]) -> float:
    """What the weights of 16 bits among those that are kept would take more in FP32, MiB; 0 without quantised ones."""
    if not (_stores_packed(kept) and count_quantised(graph)):
        return 0.0
    more_bytes = (DType.FLOAT32.bits - DType.FLOAT16.bits) / 8
    count = sum(kept.get(dtype, 0) for dtype in (DType.FLOAT16, DType.BFLOAT16))
    return count * more_bytes / BYTES_PER_MIB


def _untrained_of(step: TrainingGraph) -> tuple[float, str]:
    """What the weights of a step take that could be trained and get no gradient, MiB, and the name of the largest."""
    weights = [step.graph.tensors[index] for index in step.untrained]
    sizes_mb = [
        math.prod(size.fixed for size in weight.shape) * weight.dtype.bits / 8 / BYTES_PER_MIB for weight in weights
    ]
    names = [weight.name for weight in weights]
    return sum(sizes_mb), max(zip(sizes_mb, names, strict=True), default=(0.0, ""))[1]


def _uncached_mb(work: Workload) -> list[float]:
    """What copies of all FP32 weights that autocast casts and keeps no copies of would take, of each graph, MiB."""
    casts, arrays = work.types.casts, work.sizes.arrays
    owner = arrays.storage[casts.tensor]
    is_of_weight = _IS_PARAMETER[arrays.role[owner]] & _IS_FLOAT32[arrays.dtype[owner]]
    (chosen,) = np.nonzero(is_of_weight & ~casts.is_cached)
    chosen = chosen[is_first(number_values(owner[chosen]))]
    # A weight has as many elements at any batch.
    kept_bytes = np.zeros(len(casts) + 1)
    kept_bytes[chosen + 1] = work.cast_elements[chosen, 0] * casts.to_bytes[chosen]
    ends = np.cumsum(kept_bytes)[np.searchsorted(casts.node, arrays.node_start)]
    result: list[float] = (np.diff(ends) / BYTES_PER_MIB).tolist()
    return result


def group_graphs(graphs: Sequence[Graph], *, questions: int) -> Iterator[list[Graph]]:
    """Graphs that are laid out together, in their order; one that is large stands alone.

    Args:
        graphs: All graphs.
        questions: Batches times devices that each is asked for.
    """
    group: list[Graph] = []
    held = 0
    for graph in graphs:
        own = len(graph.nodes) * questions
        if group and held + own > _AT_ONCE:
            yield group
            group, held = [], 0
        group.append(graph)
        held += own
    if group:
        yield group


def _inputs_of(graph: Graph, batches: Sequence[int]) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    tensors = [graph.tensors[index] for index in graph.inputs]
    return tuple({tensor.name: tuple(dim.at(batch) for dim in tensor.shape) for tensor in tensors} for batch in batches)


def _numbers_of(kind: IndexArray) -> list[int]:
    """The kinds that there are, as numbers."""
    numbers: list[int] = np.flatnonzero(np.bincount(kind)).tolist()
    return numbers


def _by_kind(kind: IndexArray) -> dict[OpKind, IndexArray]:
    """Positions of the nodes of each kind that there is."""
    return {_KINDS[number]: np.flatnonzero(kind == number) for number in _numbers_of(kind)}


def _most_runs(sizes: GraphSizes, steps: Sequence[TrainingGraph]) -> FloatArray:
    """How many times as often each node may run; one of the backward pass as its forward node, [n_nodes]."""
    result = sizes.read_attributes(np.arange(len(sizes.nodes)), most_runs_of)
    for step, nodes in zip(steps, sizes.nodes_of_graphs if steps else (), strict=True):
        is_backward = step.twin >= 0
        own = result[nodes]
        own[is_backward] = np.maximum(own, own[step.twin])[is_backward]
    return result


def _is_any(nodes_of: Mapping[OpKind, IndexArray], kinds: AbstractSet[OpKind], *, count: int) -> npt.NDArray[np.bool_]:
    """Which nodes are of one of some kinds, [count]."""
    result = np.zeros(count, dtype=np.bool_)
    for kind in kinds & nodes_of.keys():
        result[nodes_of[kind]] = True
    return result
