"""The classes of operators of one or several graphs, and their features at each batch on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.device_time import busy_ms
from dippm.costs.edges import IndexArray
from dippm.costs.kept_answers import keep_answers
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel
from dippm.costs.numbering import is_first, number_rows, number_values
from dippm.costs.polynomial import FloatArray, evaluate, scatter_add
from dippm.costs.precision import Arithmetic, Precision
from dippm.costs.rates import Rates
from dippm.costs.split_convolutions import run_by_group
from dippm.costs.tensor_rates import of_every_format, tensor_tflops
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.features.physical.classes import colours_of
from dippm.features.physical.columns import AT, COLUMNS, STATIC
from dippm.features.physical.interpolation import interpolation_ms
from dippm.features.physical.links import Links, Messages, messages_of
from dippm.features.physical.static import static_features
from dippm.features.physical.tiles import tile_columns, wave_columns
from dippm.features.physical.weights import weight_bytes
from dippm.graph import Graph, OpKind
from dippm.units import BYTES_PER_MIB, GIGA, TERA

__all__ = ["PhysicalPlan", "PhysicalSamples"]

Float32Array = npt.NDArray[np.float32]

_MS_PER_S = 1e3
# Places among the columns that change.
_AT = {name: place - len(STATIC) for name, place in AT.items()}
_TINY = 1e-9
# What runs inside of another's kernel takes next to no time: less than any launch, and not so little that its logarithm
# would stand apart from all others.
_FUSED_MS = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhysicalSamples:
    """One or several graphs at several batches on one device.

    Args:
        static: Features of each class of operators that do not change.
        changing: Those that depend on batch, device or conditions.
        kernel_ms: Kernel time of one operator of each class by predictor 0.

    Shapes:
        static: [C, len(STATIC)]; changing: [B, C, len(COLUMNS) - len(STATIC)]; kernel_ms: [B, C].
    """

    static: Float32Array
    changing: Float32Array
    kernel_ms: FloatArray

    @property
    def node_features(self) -> Float32Array:
        """All features, in the order of ``COLUMNS``, [B, C, len(COLUMNS)]."""
        static = np.broadcast_to(self.static, (len(self.changing), *self.static.shape))
        return np.concatenate([static, self.changing], axis=2)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhysicalPlan:
    """What depends on neither batch nor device; built once per graph and precision, or for several graphs at once.

    Args:
        kernels: The kernels of the graphs.
        class_start: First class of each graph, and behind the last one.
        class_of: Class of each node, -1 for views.
        times: How often each node runs.
        node: One operator of each class.
        count: How often an operator of each class runs, all of them together.
        launches: Kernels that an operator of each class launches.
        producers: What each class hears from the operators that it reads from.
        consumers: What each class hears from the operators that read it.
        static: Features that do not change.
        static_number: Numbers that are equal where these are, for many classes differ by their sizes alone.
        weight_bytes: Bytes of weights that an operator of each class reads.
        first_elements: Elements of its first input, as polynomials of the batch.
        first_bytes: Bytes of each of those.
        out_elements: Elements of its first output, as polynomials of the batch.

    Shapes:
        class_start: [G + 1]; class_of, times: [n_nodes]; node, count, launches, static_number,
        weight_bytes, first_bytes: [C]; static: [C, len(STATIC)]; first_elements, out_elements: [C, D].
    """

    kernels: KernelPlan
    class_start: IndexArray
    class_of: IndexArray
    times: FloatArray
    node: IndexArray
    count: FloatArray
    launches: FloatArray
    producers: Messages
    consumers: Messages
    static: Float32Array
    static_number: IndexArray
    weight_bytes: FloatArray
    first_elements: FloatArray
    first_bytes: FloatArray
    out_elements: FloatArray

    @classmethod
    def from_graph(
        cls, graph: Graph | TrainingGraph, precision: Precision, runtime: Runtime = Runtime.EAGER
    ) -> PhysicalPlan:
        """Lay out the work of a graph and merge what is alike.

        Args:
            graph: A forward graph, or a whole training step.
            precision: Arithmetic of a forward graph; a training step knows its own.
            runtime: Runtime of a forward graph.
        """
        if not isinstance(graph, TrainingGraph):
            work = Workload.from_graph(graph, precision)
            return cls.from_kernels(KernelPlan.from_workload(work.fused() if runtime is Runtime.COMPILE else work))
        work = Workload.from_graph(graph.graph, graph.precision)
        kernels = KernelPlan.from_workload(work, is_backward=graph.phase == Phase.BACKWARD)
        return cls.from_kernels(kernels, phase=graph.phase, times=graph.times)

    @classmethod
    def from_kernels(
        cls, kernels: KernelPlan, *, phase: npt.NDArray[np.int8] | None = None, times: FloatArray | None = None
    ) -> PhysicalPlan:
        """Merge what is alike within a graph.

        Args:
            kernels: The kernels of one or several graphs.
            phase: Phase of each node of training steps; None for forward graphs.
            times: How often each node runs; None for once.

        Shapes:
            phase, times: [n_nodes].
        """
        work = kernels.work
        count = len(work.sizes.nodes)
        times = np.ones(count) if times is None else times
        links = Links.of(work.sizes)
        held_bytes = weight_bytes(work)
        colours = colours_of(kernels, links, phase, weight_bytes=held_bytes)
        operators = np.flatnonzero(~work.sizes.is_kind(OpKind.VIEW))
        numbers = number_values(colours[operators])
        class_of = np.full(count, -1, dtype=np.int64)
        class_of[operators] = numbers
        node = operators[is_first(numbers)]
        launches = kernels.is_launched.astype(np.float64)
        np.add.at(launches, work.types.casts.node, 1.0)
        first_input = work.sizes.inputs(node, 0)
        static = static_features(work, kernels, links, phase, node=node)
        return cls(
            kernels=kernels,
            class_start=np.searchsorted(node, work.sizes.arrays.node_start),
            class_of=class_of,
            node=node,
            count=np.bincount(numbers, times[operators], minlength=len(node)).astype(np.float64),
            times=times,
            launches=launches[node],
            producers=messages_of(node, class_of, links.consumer, links.producer),
            consumers=messages_of(node, class_of, links.producer, links.consumer),
            static=static,
            static_number=number_rows(static),
            weight_bytes=held_bytes[node],
            first_elements=work.sizes.elements_of(first_input),
            first_bytes=np.append(work.types.tensor_bytes, 0.0)[first_input],
            out_elements=work.sizes.elements_of(work.sizes.outputs(node)),
        )

    def at(
        self,
        batches: Sequence[int],
        *,
        device: DeviceSpec,
        conditions: Conditions,
        rates: Rates,
        kernels: KernelModel,
    ) -> PhysicalSamples:
        """Features at each batch on a device.

        Args:
            batches: Batch sizes.
            device: The device.
            conditions: Layout and mode.
            rates: Sustained rates of predictor 0.
            kernels: Learned kernel times of predictor 0.

        Raises:
            UsageError: ``batch.invalid``.
        """
        at = self.kernels.work.at(list(batches))
        return self.features(at, devices=[device], conditions=conditions, rates=[rates], kernels=kernels)[0]

    def features(
        self,
        at: WorkloadAt,
        *,
        devices: Sequence[DeviceSpec],
        conditions: Conditions,
        rates: Sequence[Rates],
        kernels: KernelModel,
    ) -> list[PhysicalSamples]:
        """What :meth:`at` gives on each of several devices, where the work at the batches is known.

        Args:
            at: The work of the graph at each batch.
            devices: The devices.
            conditions: Layout and mode.
            rates: Sustained rates of predictor 0, those of each device.
            kernels: Learned kernel times of predictor 0.
        """
        of_devices = busy_ms(self.kernels, at, devices=devices, conditions=conditions, rates=rates, kernels=kernels)
        return [
            self._features_on(at, busy, device=device, conditions=conditions, rates=own)
            for busy, device, own in zip(of_devices, devices, rates, strict=True)
        ]

    def _features_on(
        self, at: WorkloadAt, busy: FloatArray, *, device: DeviceSpec, conditions: Conditions, rates: Rates
    ) -> PhysicalSamples:
        """The features on a device whose time of each node is known, [B, n_nodes]; the time is changed in place."""
        if not rates.plane_cycles and self.kernels.work.fusion is None:  # else that is the plain sum's own law
            busy += interpolation_ms(self.kernels, at, layout=conditions.layout, device=device)
        changing = self._fill_in(at, busy, device)
        if conditions.layout is Layout.NHWC:
            changing[:, :, _AT["nhwc"]] = 1.0
        is_last = self.kernels.formats[conditions.layout].is_last[self.node]
        changing[:, :, _AT["channels_last"]] = is_last
        changing[:, :, _AT["channels_last_convolution"]] = is_last & (self.static[:, AT["kernel"]] > 0)
        changing[:, :, _AT["training"]] = conditions.mode is Mode.TRAINING
        split, groups = run_by_group(self.kernels, at.convolution, layout=conditions.layout)
        changing[:, self.class_of[split], _AT["is_split"]] = groups > 0.0
        return PhysicalSamples(static=self.static, changing=changing, kernel_ms=busy.take(self.node, axis=1))

    def _fill_in(self, at: WorkloadAt, busy: FloatArray, device: DeviceSpec) -> Float32Array:
        """The columns that change, of which those are filled in that do not depend on the conditions."""
        of_work, flops, moved, tiles = _of_work(at, self)
        changing = of_work.copy()
        own = np.maximum(busy.take(self.node, axis=1), _TINY if self.kernels.work.fusion is None else _FUSED_MS)
        peak = _peaks_tflops(device)
        call_ms = np.maximum(self._sum_by_graph(busy), _TINY)
        compute_ms = np.maximum(flops / (peak[self.kernels.arithmetic[self.node]] * TERA) * _MS_PER_S, _TINY)
        memory_ms = np.maximum(moved / (device.bandwidth_gb_s * GIGA) * _MS_PER_S, _TINY)
        columns = {
            "kernel_ms": np.log(own),
            "share": np.log(own / call_ms),
            "compute_use": np.log(compute_ms / own),
            "memory_use": np.log(memory_ms / own),
            "balance": np.log(compute_ms / memory_ms),
            "over_cache": np.log(moved / (device.l2_mb * BYTES_PER_MIB)),
            **wave_columns(tiles, device),
        }
        for name, values in columns.items():
            changing[:, :, _AT[name]] = values
        return changing

    @property
    def classes_of_graphs(self) -> list[slice]:
        """The classes of each graph, which lie side by side."""
        return [slice(first, stop) for first, stop in pairwise(self.class_start.tolist())]

    def _sum_by_graph(self, busy: FloatArray) -> FloatArray:
        """Time of all operators of the graph of each class, [B, C]."""
        totals = np.stack([busy[:, own].sum(axis=1) for own in self.kernels.work.sizes.nodes_of_graphs], axis=1)
        return np.repeat(totals, np.diff(self.class_start), axis=1)


@keep_answers
def _of_work(at: WorkloadAt, plan: PhysicalPlan) -> tuple[Float32Array, FloatArray, FloatArray, FloatArray]:
    """What each class does, whatever the device: columns that say so, FLOPs, bytes moved, and tiles.

    Shapes:
        [B, C, len(COLUMNS) - len(STATIC)], and [B, C] each.
    """
    node = plan.node
    read, written, flops = (each.take(node, axis=1) for each in (at.bytes_read, at.bytes_written, at.flops))
    cast = np.zeros_like(read)
    if len(at.casts.node):
        moved_by_casts = (at.casts.bytes_read + at.casts.bytes_written).T
        cast = scatter_add(at.casts.node, moved_by_casts, count=at.flops.shape[1]).take(node, axis=0).T
    moved = np.maximum(read + written, 1.0)
    first_elements, out_elements = (evaluate(each, at.batches) for each in (plan.first_elements, plan.out_elements))
    of_sizes, tiles = tile_columns(at, node)
    columns = {
        "write_share": written / moved,
        "weight_share": np.minimum(plan.weight_bytes, moved) / moved,
        "cast_share": cast / (moved + cast),
        "first_share": np.minimum(first_elements * plan.first_bytes, moved) / moved,
        "shrink": np.log(np.maximum(first_elements, 1.0) / np.maximum(out_elements, 1.0)),
        **of_sizes,
    }
    result = np.zeros((*read.shape, len(COLUMNS) - len(STATIC)), dtype=np.float32)
    for name, values in columns.items():
        result[:, :, _AT[name]] = values
    return result, flops, moved, tiles


def _peak_tflops(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """The data sheet's rate for a format, that of FP32 where there is none."""
    return max(tensor_tflops(device, arithmetic), device.peak_tflops["fp32"])


_peaks_tflops = of_every_format(_peak_tflops)
