"""The features of DNNPerf: nodes and edges of a whole training step at a batch size.

Gao, Gu, Zhang, Lin and Yang, "Runtime Performance Prediction for Deep Learning Models with Graph Neural Network"
(ICSE-SEIP 2023), Tables I and II. The tables say what a node and an edge know. As numbers it is here:

========== ========================= ==================================================================================
of         column                    value
========== ========================= ==================================================================================
node       operator                  its kind, one-hot over :data:`OPERATORS`
node       kernel_height, ..._width  of the last two spatial dimensions; a kernel of one dimension has height 1
node       stride, padding, dilation largest over the spatial dimensions
node       groups                    of convolutions, and of norms over groups
node       input_channels            of the first input: dimension 1 where a kernel moves over it, else the last one
node       output_channels           of the first output, likewise
node       heads                     of attention
node       hidden_size, layers       of recurrent layers
node       normalized_elements       that a norm takes together
node       input_bytes               tensors that it reads, but for weights and their gradients
node       output_bytes              tensors that it writes, but for gradients of weights
node       weight_bytes              weights and buffers that it reads
node       weight_gradient_bytes     gradients of weights that it writes or reads; in the forward pass those that its
                                     weights will get
node       output_gradient_bytes     gradient of the outputs of the forward node, for that node and its backward twins
node       temporary_bytes           scratch memory, and outputs that are dropped at once
node       flops                     floating-point operations
node       device_tflops             peak rate of the device at the precision
node       device_memory_mb          memory of the device, MiB
edge       is_forward, is_backward   an edge is forward where both its nodes are of the forward pass
edge       tensor_bytes              what is handed on, as it is stored
edge       bandwidth_gb_s            memory bandwidth of the device
========== ========================= ==================================================================================

Nodes are those that do something: views are left out, and what they hand on comes from behind them. An edge stands for
all tensors that one node hands to another.

The paper scales by minimum and maximum and does not say of what. Here all columns but the one-hot ones are ``ln(1 +
value)`` first: sizes span nine decades, so that on a plain scale nearly all nodes would be alike. How they are scaled
after that is :mod:`dippm.features.dnnperf_scaling`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.polynomial import FloatArray, as_batches, evaluate, pad, scatter_add
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.costs.workload import Workload
from dippm.devices import DeviceSpec
from dippm.features.pmgns import check_batches, largest
from dippm.graph import OpKind, TensorRole

__all__ = [
    "COST_COLUMNS",
    "EDGE_COLUMNS",
    "NODE_COLUMNS",
    "OPERATORS",
    "DnnperfSample",
    "compute_dnnperf_features",
]

OPERATORS: tuple[OpKind, ...] = tuple(kind for kind in OpKind if FAMILY_OF_KIND[kind] is not WorkFamily.FREE)
"""Kinds that a node may have, in the order of the one-hot columns."""

_ATTRIBUTES: Mapping[str, str] = {
    "stride": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "groups": "groups",
    "hidden_size": "hidden_size",
    "layers": "num_layers",
    "normalized_elements": "axes_size",
}
_HYPERPARAMETERS = ("kernel_height", "kernel_width", *_ATTRIBUTES, "input_channels", "output_channels", "heads")
_SIZES = (
    "input_bytes",
    "output_bytes",
    "weight_bytes",
    "weight_gradient_bytes",
    "output_gradient_bytes",
    "temporary_bytes",
    "flops",
)

NODE_COLUMNS = (*_HYPERPARAMETERS, *_SIZES, "device_tflops", "device_memory_mb")
"""Columns of the node values, which follow the one-hot operator."""
EDGE_COLUMNS = ("is_forward", "is_backward", "tensor_bytes", "bandwidth_gb_s")
"""Columns of the edge values."""
COST_COLUMNS = frozenset((*_SIZES, "tensor_bytes"))
"""Columns that tell sizes of tensors and costs, of nodes and of edges."""

_PLACE = {kind: place for place, kind in enumerate(OPERATORS)}
_WEIGHTS = frozenset({TensorRole.PARAMETER, TensorRole.BUFFER})
_PEAK_RATE: Mapping[Precision, tuple[str, ...]] = {
    Precision.FP32: ("fp32",),
    Precision.FP32_STRICT: ("fp32",),
    Precision.TF32: ("tf32_tensor", "fp32"),
    Precision.AMP: ("fp16_tensor", "fp16", "fp32"),
    Precision.FP16: ("fp16_tensor", "fp16", "fp32"),
    Precision.AMP_BF16: ("bf16_tensor", "fp32"),
    Precision.BF16: ("bf16_tensor", "fp32"),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DnnperfSample:
    """A training step at a batch size as DNNPerf sees it.

    Args:
        operators: Place of each node's kind in :data:`OPERATORS`; nodes stand in the order in which they run.
        node_values: The columns of :data:`NODE_COLUMNS`, logarithms.
        edge_index: Source and target of each edge, each pair once, by target.
        edge_values: The columns of :data:`EDGE_COLUMNS`, logarithms but for the first two.

    Shapes:
        operators: int16 [n]; node_values: float32 [n, V]; edge_index: int64 [2, E]; edge_values: float32 [E, W].
    """

    operators: npt.NDArray[np.int16]
    node_values: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int64]
    edge_values: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Edges:
    """Edges between nodes that do something, as positions in the graph; tensors that they share have a row each."""

    source: IndexArray
    target: IndexArray
    owner: IndexArray
    tensor: IndexArray


def compute_dnnperf_features(
    training: TrainingGraph, batches: Sequence[int], device: DeviceSpec | None
) -> list[DnnperfSample]:
    """Compute the features of a training step at several batch sizes, with one traversal for all of them.

    Args:
        training: The training step.
        batches: Batch sizes, each at least 1.
        device: The device; where it is not known its columns are 0.

    Returns:
        A sample per batch size; all share operators and edges.

    Raises:
        UsageError: ``batch.invalid``.
        UnsupportedError: ``graph.fixed_batch`` where the model holds for another batch size only.
    """
    graph = training.graph
    check_batches(graph, batches)
    at = as_batches(list(batches))
    work = Workload.from_graph(graph, training.precision)
    kept: IndexArray = np.array(
        [position for position, node in enumerate(graph.nodes) if node.kind in _PLACE], dtype=np.int64
    )
    operators = np.array([_PLACE[graph.nodes[position].kind] for position in kept], dtype=np.int16)
    node_values = _node_values(training, work, kept, at, device)
    edges = _find_edges(training)
    edge_values = _edge_values(training, work, edges, at, device)
    place = np.full(len(graph.nodes), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    edge_index = np.stack([place[edges.source], place[edges.target]])
    return [
        DnnperfSample(operators=operators, node_values=of_nodes, edge_index=edge_index, edge_values=of_edges)
        for of_nodes, of_edges in zip(node_values, edge_values, strict=True)
    ]


def _node_values(
    training: TrainingGraph, work: Workload, kept: IndexArray, batches: FloatArray, device: DeviceSpec | None
) -> npt.NDArray[np.float32]:
    """Logarithms of :data:`NODE_COLUMNS` at each batch size, [B, n, V]."""
    columns = {**_hyperparameters(work), **_tensor_sizes(training, work), "flops": work.flops}
    rate = 0.0 if device is None else _peak_tflops(device, training.settings.precision)
    columns["device_tflops"] = np.full((len(training.graph.nodes), 1), rate)
    columns["device_memory_mb"] = np.full((len(training.graph.nodes), 1), 0.0 if device is None else device.memory_mb)
    width = max(polynomials.shape[1] for polynomials in columns.values())
    stacked = np.concatenate([pad(columns[name], width)[kept] for name in NODE_COLUMNS])
    values = evaluate(stacked, batches).reshape(len(batches), len(NODE_COLUMNS), len(kept))
    return _logarithm(values).transpose(0, 2, 1).astype(np.float32)


def _edge_values(
    training: TrainingGraph, work: Workload, edges: _Edges, batches: FloatArray, device: DeviceSpec | None
) -> npt.NDArray[np.float32]:
    """:data:`EDGE_COLUMNS` at each batch size, [B, E, W]."""
    of_tensor = work.sizes.elements[edges.tensor] * work.types.tensor_bytes[edges.tensor][:, None]
    handed_on = evaluate(scatter_add(edges.owner, of_tensor, count=len(edges.source)), batches)
    is_forward = (training.phase[edges.source] == Phase.FORWARD) & (training.phase[edges.target] == Phase.FORWARD)
    result = np.zeros((len(batches), len(edges.source), len(EDGE_COLUMNS)))
    result[:, :, 0] = is_forward
    result[:, :, 1] = ~is_forward
    result[:, :, 2] = _logarithm(handed_on)
    result[:, :, 3] = np.log1p(0.0 if device is None else device.bandwidth_gb_s)
    return result.astype(np.float32)


def _find_edges(training: TrainingGraph) -> _Edges:
    """Connect the nodes, past those that do nothing."""
    graph = training.graph
    producer = graph.producers()
    # For each node that does nothing the nodes behind it.
    behind: dict[int, dict[int, None]] = {}
    found: dict[tuple[int, int], int] = {}
    owner: list[int] = []
    tensors: list[int] = []
    for position, node in enumerate(graph.nodes):
        read = dict.fromkeys(index for index in node.inputs if index >= 0 and producer[index] >= 0)
        sources = [(source, index) for index in read for source in behind.get(producer[index], {producer[index]: None})]
        if node.kind not in _PLACE:
            behind[position] = dict.fromkeys(source for source, _ in sources)
            continue
        for source, index in sources:
            owner.append(found.setdefault((source, position), len(found)))
            tensors.append(index)
    pairs = np.array(list(found), dtype=np.int64).reshape(-1, 2)
    return _Edges(
        source=pairs[:, 0],
        target=pairs[:, 1],
        owner=np.array(owner, dtype=np.int64),
        tensor=np.array(tensors, dtype=np.int64),
    )


def _hyperparameters(work: Workload) -> dict[str, FloatArray]:
    """Hyperparameters of each node as polynomials, [n_nodes, D] each."""
    sizes, nodes = work.sizes, work.sizes.graph.nodes
    kernels = [node.attributes.get("kernel") for node in nodes]
    windows = [(1, 1, *kernel)[-2:] if isinstance(kernel, tuple) and kernel else (0, 0) for kernel in kernels]
    columns = {
        "kernel_height": _column([height for height, _ in windows]),
        "kernel_width": _column([width for _, width in windows]),
        **{name: _column([largest(node, attribute) for node in nodes]) for name, attribute in _ATTRIBUTES.items()},
    }
    every = np.arange(len(nodes), dtype=np.int64)
    channel_axis = np.where(columns["kernel_height"][:, 0] > 0, 1, -1)
    source, result = sizes.inputs(every, 0), sizes.outputs(every)
    is_attention = np.array([work_of is WorkFamily.ATTENTION for work_of in work.family], dtype=np.float64)
    columns["input_channels"] = sizes.dimension(source, channel_axis)
    columns["output_channels"] = sizes.dimension(result, channel_axis)
    columns["heads"] = sizes.dimension(source, 1) * is_attention[:, None]
    return columns


def _tensor_sizes(training: TrainingGraph, work: Workload) -> dict[str, FloatArray]:
    """Bytes of the tensors of each node as polynomials, [n_nodes, D] each."""
    graph, edges, elements = training.graph, work.sizes.edges, work.sizes.elements
    count = len(graph.nodes)
    owner = [index if tensor.alias_of is None else tensor.alias_of for index, tensor in enumerate(graph.tensors)]
    role = [graph.tensors[index].role for index in owner]
    is_weight = np.array([of_owner in _WEIGHTS for of_owner in role], dtype=np.bool_)
    is_gradient = np.array([of_owner is TensorRole.GRADIENT for of_owner in role], dtype=np.bool_)
    read_bytes = elements[edges.read_tensor] * work.types.read_bytes[:, None]
    written_bytes = elements[edges.write_tensor] * work.types.tensor_bytes[edges.write_tensor][:, None]

    def read(chosen: npt.NDArray[np.bool_]) -> FloatArray:
        mask = chosen[edges.read_tensor]
        return scatter_add(edges.read_node[mask], read_bytes[mask], count=count)

    def written(chosen: npt.NDArray[np.bool_]) -> FloatArray:
        mask = chosen[edges.write_tensor]
        return scatter_add(edges.write_node[mask], written_bytes[mask], count=count)

    weights, outputs = read(is_weight), written(~is_gradient)
    is_backward = training.twin >= 0
    is_differentiated = np.zeros(count, dtype=np.bool_)
    is_differentiated[training.twin[is_backward]] = True
    parameters = read(np.array([of_owner is TensorRole.PARAMETER for of_owner in role], dtype=np.bool_))
    # A node of the forward pass is given what will be made for it; a twin has the gradient of its node's outputs.
    gradient_of = np.where(is_backward, training.twin, np.arange(count))
    has_gradient = is_differentiated | is_backward
    return {
        "input_bytes": read(~is_weight & ~is_gradient),
        "output_bytes": outputs,
        "weight_bytes": weights,
        "weight_gradient_bytes": _sum(read(is_gradient), written(is_gradient), parameters * is_differentiated[:, None]),
        "output_gradient_bytes": outputs[gradient_of] * has_gradient[:, None],
        "temporary_bytes": _sum(work.scratch, work.dropped),
    }


def _column(values: Sequence[int]) -> FloatArray:
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def _sum(*polynomials: FloatArray) -> FloatArray:
    width = max(each.shape[1] for each in polynomials)
    result = np.zeros((len(polynomials[0]), width))
    for each in polynomials:
        result += pad(each, width)
    return result


def _logarithm(values: FloatArray) -> FloatArray:
    # Where the batch is cut by a constant, a size is below 0 for the smallest batches: there is nothing there.
    result: FloatArray = np.log1p(values.clip(min=0.0))
    return result


def _peak_tflops(device: DeviceSpec, precision: Precision) -> float:
    return next(device.peak_tflops[name] for name in _PEAK_RATE[precision] if name in device.peak_tflops)
