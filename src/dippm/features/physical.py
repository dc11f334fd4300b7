"""Graph, device and conditions as physical quantities per operator: what the additive network reads.

Every column is a ratio, a size in its logarithm, or a property of the operator: how long the kernel takes by predictor
0's account, how much of the device's peaks that would use, how it cuts into tiles, what it is. The device enters by
these ratios alone.

Operators that are alike, and whose neighbours up to two steps away are alike, get the same embeddings in a network of
two rounds of messages. They are merged into one class with a count, which is exact and makes graphs of repeated blocks
several times smaller. Views launch nothing: they are taken out, and what they connect is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout, Mode
from dippm.costs.device_time import busy_ms
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.precision import Arithmetic, Precision
from dippm.costs.rates import Rates
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.graph import Graph, OpKind
from dippm.units import BYTES_PER_MIB, GIGA, TERA

__all__ = ["COLUMNS", "LARGEST_CORRECTION", "LAUNCH_MS", "ROUNDS", "Messages", "PhysicalPlan", "PhysicalSamples"]

Float32Array = npt.NDArray[np.float32]

ROUNDS = 2
"""Rounds of messages for which classes of operators are exact."""

LAUNCH_MS = 0.002
"""Overhead of a kernel that the network corrects, ms: the least time between two dependent kernels."""

LARGEST_CORRECTION = 3.0
"""Bound of the logarithm of a correction: no operator is off by more than a factor of 20."""

_FORMATS = (Arithmetic.FP32, Arithmetic.TF32, Arithmetic.FP16, Arithmetic.BF16)
_TENSOR_PEAK = {
    Arithmetic.TF32: "tf32_tensor",
    Arithmetic.FP16: "fp16_tensor",
    Arithmetic.BF16: "bf16_tensor",
    Arithmetic.INT8: "int8_tensor",
}
# Functions whose kernels differ most from the plainest of their kind.
_FUNCTIONS = ("clone", "roll", "im2col", "mean", "sum", "norm", "addcmul", "max")
# What a view does to the order in which the next kernel reads.
_REORDERING_VIEWS = frozenset({"permute", "transpose"})
_PARTIAL_VIEWS = frozenset({"unbind", "split", "slice", "select", "split_with_sizes", "unfold"})
_GRADIENT_KINDS = frozenset(kind for kind in OpKind if kind.value.endswith("_grad"))
_KIND_NAMES = frozenset(kind.value for kind in OpKind)
_ALIGNMENTS = (8, 32, 64)
_TILE = 128.0
_MS_PER_S = 1e3
_TINY = 1e-9
# Of an interpolating kernel: threads that run at a time, and cycles in which one works out a pixel. The latter from
# EfficientFormerV2 on RTX 3090 and 4090 (timm's tables), whose time is that of its two to six resizes.
_THREADS_PER_SM = 1536
_CYCLES_PER_IMAGE = 1300

_STATIC = (
    *(f"is_{kind.value}" for kind in OpKind),
    *(f"in_{phase.name.lower()}" for phase in Phase),
    *(f"in_{name.value}" for name in _FORMATS),
    *(f"function_{name}" for name in _FUNCTIONS),
    "input_bytes",
    "output_bytes",
    "inputs",
    "input_rank",
    "output_rank",
    "is_in_place",
    "reads_reordered",
    "reads_part",
    "is_read_reordered",
    "kernel",
    "is_pointwise",
    "is_long",
    "stride",
    "dilation",
    "groups",
    "in_channels",
    "out_channels",
    "group_inputs",
    "group_outputs",
    "is_depthwise",
    "is_grouped",
    *(f"in_channels_by_{size}" for size in _ALIGNMENTS),
    *(f"out_channels_by_{size}" for size in _ALIGNMENTS),
    "has_bias",
    "has_mask",
    "is_last",
    "width",
    "in_height",
    "out_height",
)
_SIZES = ("products", "rows", "columns", "depth")
_DYNAMIC = (
    "kernel_ms",
    "share",
    "compute_use",
    "memory_use",
    "balance",
    "over_cache",
    "write_share",
    "weight_share",
    "cast_share",
    "first_share",
    "shrink",
    *_SIZES,
    *(f"{name}_by_8" for name in _SIZES[1:]),
    "waves",
    "last_wave",
    "row_width",
    "window",
)
_CONDITIONS = ("nhwc", "nhwc_image", "nhwc_convolution", "training")

COLUMNS: tuple[str, ...] = (*_STATIC, *_DYNAMIC, *_CONDITIONS)
"""Columns of the node features."""

_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Messages:
    """Means over neighbours: the value of ``source`` times ``weight``, summed by ``target``, which is ascending.

    Shapes:
        All [E].
    """

    source: IndexArray
    target: IndexArray
    weight: Float32Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhysicalSamples:
    """One graph at several batches on one device.

    Args:
        node_features: Features of each class of operators.
        kernel_ms: Kernel time of one operator of each class by predictor 0.

    Shapes:
        node_features: [B, C, len(COLUMNS)]; kernel_ms: [B, C].
    """

    node_features: Float32Array
    kernel_ms: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhysicalPlan:
    """What depends on neither batch nor device; built once per graph and precision.

    Args:
        kernels: The graph's kernels.
        class_of: Class of each node, -1 for views.
        times: How often each node runs.
        node: One operator of each class.
        count: How often an operator of each class runs, all of them together.
        launches: Kernels that an operator of each class launches.
        producers: What each class hears from the operators that it reads from.
        consumers: What each class hears from the operators that read it.
        static: Features that do not change.
        is_image: Whether each class writes a tensor of four dimensions.
        serial: Nodes that interpolate with one thread per pixel.

    Shapes:
        class_of, times: [n_nodes]; node, count, launches, is_image: [C]; static: [C, len(_STATIC)].
    """

    kernels: KernelPlan
    class_of: IndexArray
    times: FloatArray
    node: IndexArray
    count: FloatArray
    launches: FloatArray
    producers: Messages
    consumers: Messages
    static: Float32Array
    is_image: npt.NDArray[np.bool_]
    serial: IndexArray

    @classmethod
    def from_graph(cls, graph: Graph | TrainingGraph, precision: Precision) -> PhysicalPlan:
        """Lay out the work of a graph and merge what is alike.

        Args:
            graph: A forward graph, or a whole training step.
            precision: Arithmetic of a forward graph; a training step knows its own.
        """
        phase: npt.NDArray[np.int8] | None
        if isinstance(graph, TrainingGraph):
            phase, times, precision = graph.phase, graph.times, graph.precision
            graph = graph.graph
        else:
            phase, times = None, np.ones(len(graph.nodes))
        work = Workload.from_graph(graph, precision)
        kernels = KernelPlan.from_workload(work, is_backward=None if phase is None else phase == Phase.BACKWARD)
        links = _Links(graph)
        static = _static_features(work, kernels, links, phase)
        colours = _own_colours(work, static)
        for _ in range(ROUNDS):
            colours = _refine(colours, links)
        runs = np.array([node.kind is not OpKind.VIEW for node in graph.nodes], dtype=np.bool_)
        operators = np.flatnonzero(runs)
        _, first, inverse = np.unique(colours[operators], return_index=True, return_inverse=True)
        class_of = np.full(len(graph.nodes), -1, dtype=np.int64)
        class_of[operators] = inverse.reshape(-1)
        node = operators[first]
        launches = np.ones(len(graph.nodes))
        np.add.at(launches, work.types.casts.node, 1.0)
        return cls(
            kernels=kernels,
            class_of=class_of,
            node=node,
            count=np.bincount(inverse.reshape(-1), times[operators], minlength=len(node)).astype(np.float64),
            times=times,
            launches=launches[node],
            producers=_messages(node, class_of, links.producers),
            consumers=_messages(node, class_of, links.consumers),
            static=static[node],
            is_image=static[node, _AT["output_rank"]] == 4,
            serial=_serial_resizes(graph, links, phase),
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
        busy = busy_ms(self.kernels, at, devices=[device], conditions=conditions, rates=rates, kernels=kernels)[0]
        features = np.zeros((len(batches), len(self.node), len(COLUMNS)), dtype=np.float32)
        features[:, :, : len(_STATIC)] = self.static
        busy += self._interpolation_ms(at, device)
        self._fill_dynamic(features, at, busy, device)
        if conditions.layout is Layout.NHWC:
            features[:, :, _AT["nhwc"]] = 1.0
            features[:, :, _AT["nhwc_image"]] = self.is_image
            features[:, :, _AT["nhwc_convolution"]] = self.static[:, _AT["kernel"]] > 0
        features[:, :, _AT["training"]] = conditions.mode is Mode.TRAINING
        return PhysicalSamples(node_features=features, kernel_ms=busy[:, self.node])

    def _interpolation_ms(self, at: WorkloadAt, device: DeviceSpec) -> FloatArray:
        """Time that interpolating resizes take beyond their traffic, [B, n_nodes].

        PyTorch's kernels run one thread per pixel of the result, which walks over all samples and channels. Small
        images of many channels leave most of the device idle: all that counts is how long one thread takes. Where the
        channels lie side by side, because the image is a transposed list of tokens, another kernel does better.
        """
        result = np.zeros_like(at.flops)
        sizes = self.kernels.work.sizes
        chosen = self.serial
        if len(chosen):
            out = sizes.outputs(chosen)
            pixels = evaluate(sizes.dimension(out, -1), at.batches) * evaluate(sizes.dimension(out, -2), at.batches)
            images = evaluate(sizes.elements[out], at.batches) / np.maximum(pixels, 1.0)
            turns = np.ceil(pixels / (device.sm_count * _THREADS_PER_SM))
            result[:, chosen] = images * turns * _CYCLES_PER_IMAGE / (device.boost_clock_mhz * 1e3)
        return result

    def _fill_dynamic(self, features: Float32Array, at: WorkloadAt, busy: FloatArray, device: DeviceSpec) -> None:
        node = self.node
        own = np.maximum(busy[:, node], _TINY)
        peak = np.array([_peak_tflops(device, value) for value in tuple(Arithmetic)])[self.kernels.arithmetic[node]]
        read, written, flops = at.bytes_read[:, node], at.bytes_written[:, node], at.flops[:, node]
        cast = np.zeros_like(at.flops)
        np.add.at(cast.T, at.casts.node, (at.casts.bytes_read + at.casts.bytes_written).T)
        moved = np.maximum(read + written, 1.0)
        compute_ms = np.maximum(flops / (peak * TERA) * _MS_PER_S, _TINY)
        memory_ms = np.maximum(moved / (device.bandwidth_gb_s * GIGA) * _MS_PER_S, _TINY)
        weights = np.minimum(self._weight_bytes()[None, :], moved)
        sizes, types = self.kernels.work.sizes, self.kernels.work.types
        source, out = sizes.inputs(node, 0), sizes.outputs(node)
        elements = evaluate(sizes.elements, at.batches)
        held = elements * np.append(types.tensor_bytes, 0.0)
        columns = {
            "kernel_ms": np.log(own),
            "share": np.log(own / busy.sum(axis=1, keepdims=True)),
            "compute_use": np.log(compute_ms / own),
            "memory_use": np.log(memory_ms / own),
            "balance": np.log(compute_ms / memory_ms),
            "over_cache": np.log(moved / (device.l2_mb * BYTES_PER_MIB)),
            "write_share": written / moved,
            "weight_share": weights / moved,
            "cast_share": cast[:, node] / (moved + cast[:, node]),
            "first_share": np.minimum(held[:, source], moved) / moved,
            "shrink": np.log(np.maximum(elements[:, source], 1.0) / np.maximum(elements[:, out], 1.0)),
            **_tile_columns(at, node, device),
        }
        for name, values in columns.items():
            features[:, :, _AT[name]] = values

    def _weight_bytes(self) -> FloatArray:
        sizes = self.kernels.work.sizes
        edges = sizes.edges
        is_weight = sizes.arrays.is_weight[edges.read_tensor]
        elements = sizes.elements[edges.read_tensor, 0]
        held = elements * self.kernels.work.types.read_bytes
        total = np.bincount(edges.read_node[is_weight], held[is_weight], minlength=len(sizes.graph.nodes))
        return np.asarray(total[self.node])


class _Links:
    """Which operators read from which, views taken out, and what the views between them did."""

    def __init__(self, graph: Graph) -> None:
        owner = [-1] * len(graph.tensors)
        is_reordered = [False] * len(graph.tensors)
        is_part = [False] * len(graph.tensors)
        count = len(graph.nodes)
        self.producers: list[list[int]] = [[] for _ in range(count)]
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        self.reads_reordered = np.zeros(count, dtype=np.bool_)
        self.reads_part = np.zeros(count, dtype=np.bool_)
        self.is_read_reordered = np.zeros(count, dtype=np.bool_)
        for position, node in enumerate(graph.nodes):
            inputs = [index for index in node.inputs if index >= 0]
            if node.kind is OpKind.VIEW:
                function = node.attributes.get("function")
                for index in node.outputs:
                    if inputs:
                        owner[index] = owner[inputs[0]]
                        is_reordered[index] = is_reordered[inputs[0]] or function in _REORDERING_VIEWS
                        is_part[index] = is_part[inputs[0]] or function in _PARTIAL_VIEWS
                continue
            for index in inputs:
                if owner[index] >= 0:
                    self.producers[position].append(owner[index])
                    self.consumers[owner[index]].append(position)
                    self.is_read_reordered[owner[index]] |= is_reordered[index]
                self.reads_reordered[position] |= is_reordered[index]
                self.reads_part[position] |= is_part[index]
            for index in node.outputs:
                owner[index] = position


def _serial_resizes(graph: Graph, links: _Links, phase: npt.NDArray[np.int8] | None) -> IndexArray:
    """Interpolating resizes of images whose rows lie side by side; their gradients have a thread for each element."""
    chosen = []
    for position, node in enumerate(graph.nodes):
        is_backward = phase is not None and phase[position] == Phase.BACKWARD
        if node.kind is OpKind.RESIZE and node.attributes.get("mode") != "nearest" and not is_backward:
            # A cast keeps the order of what it reads.
            casts = [index for index in links.producers[position] if graph.nodes[index].kind is OpKind.CAST]
            if not any(links.reads_reordered[index] for index in (position, *casts)):
                chosen.append(position)
    return np.array(chosen, dtype=np.int64)


def _own_colours(work: Workload, static: Float32Array) -> IndexArray:
    """Numbers that are equal for operators of equal work."""
    node_count = len(static)
    columns = [static.astype(np.float64), work.flops, work.bytes_read, work.bytes_written]
    tables = (work.gemm, work.convolution, work.attention, work.recurrent, work.row, work.pool, work.reduction)
    for table in tables:
        sizes = table.table
        own = np.zeros((node_count, sizes.sizes * sizes.polynomials.shape[1]))
        if len(sizes.node):
            rows = sizes.polynomials.reshape(sizes.sizes, len(sizes.node), -1)
            own[sizes.node] = np.moveaxis(rows, 1, 0).reshape(len(sizes.node), -1)
        columns.append(own)
    cast = np.zeros((node_count, work.cast_elements.shape[1]))
    np.add.at(cast, work.types.casts.node, work.cast_elements)
    columns.append(cast)
    table_of_all = np.ascontiguousarray(np.concatenate(columns, axis=1))
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in table_of_all], dtype=np.int64)


def _refine(colours: IndexArray, links: _Links) -> IndexArray:
    """Split colours by the colours of the neighbours."""
    own = colours.tolist()
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    result = []
    for position, colour in enumerate(own):
        key = (
            colour,
            tuple(sorted(own[index] for index in links.producers[position])),
            tuple(sorted(own[index] for index in links.consumers[position])),
        )
        result.append(seen.setdefault(key, len(seen)))
    return np.array(result, dtype=np.int64)


def _messages(node: IndexArray, class_of: IndexArray, neighbours: list[list[int]]) -> Messages:
    source, target, weight = [], [], []
    for own, position in enumerate(node.tolist()):
        heard = Counter(class_of[neighbours[position]].tolist())
        for other, times in sorted(heard.items()):
            source.append(other)
            target.append(own)
            weight.append(times / len(neighbours[position]))
    return Messages(
        source=np.array(source, dtype=np.int64),
        target=np.array(target, dtype=np.int64),
        weight=np.array(weight, dtype=np.float32),
    )


def _static_features(
    work: Workload, kernels: KernelPlan, links: _Links, phase: npt.NDArray[np.int8] | None
) -> Float32Array:
    graph = work.sizes.graph
    nodes = graph.nodes
    every = np.arange(len(nodes), dtype=np.int64)
    result = np.zeros((len(nodes), len(_STATIC)), dtype=np.float32)
    result[every, [_AT[f"is_{node.kind.value}"] for node in nodes]] = 1.0
    phases = np.zeros(len(nodes), dtype=np.int64) if phase is None else phase.astype(np.int64)
    result[every, _AT[f"in_{Phase(0).name.lower()}"] + phases] = 1.0
    formats = tuple(Arithmetic)
    for value in _FORMATS:
        result[:, _AT[f"in_{value.value}"]] = kernels.arithmetic == formats.index(value)
    for position, node in enumerate(nodes):
        function = node.attributes.get("function")
        if function in _FUNCTIONS:
            result[position, _AT[f"function_{function}"]] = 1.0
        elif node.kind in _GRADIENT_KINDS and function in _KIND_NAMES:
            # A gradient is like that of which it is the gradient.
            result[position, _AT[f"is_{function}"]] = 1.0
        axes, rank = node.attributes.get("axes"), len(graph.tensors[node.inputs[0]].shape) if node.inputs else 0
        if node.kind is OpKind.REDUCE and isinstance(axes, tuple):
            result[position, _AT["is_last"]] = rank - 1 in axes
    source, out = work.sizes.inputs(every, 0), work.sizes.outputs(every)
    held = np.append(work.types.tensor_bytes, 0.0)
    storage = np.append(work.sizes.arrays.storage, -1)
    columns = {
        "input_bytes": held[source],
        "output_bytes": held[out],
        "inputs": np.log1p([len({i for i in node.inputs if i >= 0}) for node in nodes]),
        "input_rank": work.sizes.rank(source),
        "output_rank": work.sizes.rank(out),
        "is_in_place": (source >= 0) & (out >= 0) & (storage[source] == storage[out]),
        "reads_reordered": links.reads_reordered,
        "reads_part": links.reads_part,
        "is_read_reordered": links.is_read_reordered,
        "width": np.log(np.maximum(work.sizes.dimension(source, -1)[:, 0], 1.0)),
        "in_height": np.log(np.maximum(work.sizes.dimension(source, -2)[:, 0], 1.0)),
        "out_height": np.log(np.maximum(work.sizes.dimension(out, -2)[:, 0], 1.0)),
    }
    for name, values in columns.items():
        result[:, _AT[name]] = values
    _fill_convolutions(result, work)
    gemm, attention, row = work.gemm, work.attention, work.row
    result[gemm.table.node, _AT["has_bias"]] = gemm.has_bias
    result[attention.table.node, _AT["has_mask"]] = attention.has_mask
    result[row.table.node, _AT["is_last"]] = row.is_last
    return result


def _fill_convolutions(result: Float32Array, work: Workload) -> None:
    at = work.convolution.at(np.ones(1))
    node = at.node
    if not len(node):
        return
    cin, cout = np.maximum(at.in_channels[0], 1.0), np.maximum(at.out_channels[0], 1.0)
    groups = np.maximum(at.groups, 1.0)
    area = at.kernel_height * at.kernel_width
    columns = {
        "kernel": np.log1p(area),
        "is_pointwise": area == 1.0,
        "is_long": at.kernel_height != at.kernel_width,
        "stride": np.log(np.maximum(at.stride_height * at.stride_width, 1.0)),
        "dilation": np.log(np.maximum(at.dilation_height * at.dilation_width, 1.0)),
        "groups": np.log(groups),
        "in_channels": np.log(cin),
        "out_channels": np.log(cout),
        "group_inputs": np.log(cin / groups),
        "group_outputs": np.log(cout / groups),
        "is_depthwise": (groups > 1.0) & (groups >= cin),
        "is_grouped": (groups > 1.0) & (groups < cin),
        "has_bias": at.has_bias,
    }
    for size in _ALIGNMENTS:
        columns[f"in_channels_by_{size}"] = (cin / groups) % size == 0
        columns[f"out_channels_by_{size}"] = (cout / groups) % size == 0
    for name, values in columns.items():
        result[node, _AT[name]] = values


def _tile_columns(at: WorkloadAt, node: IndexArray, device: DeviceSpec) -> dict[str, FloatArray]:
    """How contractions cut into tiles, and the sizes of rows and windows."""
    shape = at.flops.shape
    sizes = np.ones((len(_SIZES), *shape))
    gemm, convolution, attention, recurrent = at.gemm, at.convolution, at.attention, at.recurrent
    sizes[:, :, gemm.node] = [gemm.b, gemm.m, gemm.n, gemm.k]
    groups, area = np.maximum(convolution.groups, 1.0), convolution.kernel_height * convolution.kernel_width
    sizes[0][:, convolution.node] = groups
    sizes[1][:, convolution.node] = convolution.batch * convolution.out_height * convolution.out_width
    sizes[2][:, convolution.node] = convolution.out_channels / groups
    sizes[3][:, convolution.node] = convolution.in_channels / groups * area
    sizes[:, :, attention.node] = [
        attention.batch * attention.heads,
        attention.queries,
        attention.keys,
        attention.width,
    ]
    sizes[1][:, recurrent.node] = recurrent.batch
    sizes[2][:, recurrent.node] = recurrent.hidden_size * recurrent.gates
    sizes[3][:, recurrent.node] = recurrent.input_size
    sizes = np.maximum(sizes[:, :, node], 1.0)
    tiles = sizes[0] * np.ceil(sizes[1] / _TILE) * np.ceil(sizes[2] / _TILE) / device.sm_count
    others = np.zeros((2, *shape))
    others[0][:, at.row.node] = np.log(np.maximum(at.row.width, 1.0))
    others[1][:, at.pool.node] = np.log(np.maximum(at.pool.window, 1.0))
    row_width, window = others[:, :, node]
    return {
        **{name: np.log(values) for name, values in zip(_SIZES, sizes, strict=True)},
        **{f"{name}_by_8": values % 8 == 0 for name, values in zip(_SIZES[1:], sizes[1:], strict=True)},
        "waves": np.log(tiles),
        "last_wave": tiles / np.ceil(tiles),
        "row_width": row_width,
        "window": window,
    }


def _peak_tflops(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """The data sheet's rate for a format, that of FP32 where there is none."""
    peaks = device.peak_tflops
    return max(peaks.get(_TENSOR_PEAK.get(arithmetic, ""), 0.0), peaks["fp32"])
