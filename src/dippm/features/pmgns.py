"""The features of PMGNS: node features X, adjacency A and static features F_s of a model at a batch size.

Panner Selvam and Brorsson, "DIPPM" (2023), section 3, Algorithm 1 and Equation 1. The paper fixes that a node has 32
features, one-hot operator, attributes and output shape, and leaves open which. Here they are:

======= ====================== =====================================================================================
columns name                   value
======= ====================== =====================================================================================
0 - 18  one-hot operator       the classes of :data:`OPERATOR_CLASSES`, 1 for the node's own
19, 20  kernel height, width   of the last two spatial dimensions; a kernel of one dimension has height 1
21      stride                 largest over the spatial dimensions
22      padding                largest over the spatial dimensions, before the first element
23      dilation               largest over the spatial dimensions; convolutions only
24      groups                 convolutions only
25      terms                  numbers combined in one element of the output: multiply-accumulates per element, elements
                               that softmax or a norm takes together, the pooling window, elements reduced to one
26      input elements         elements of all activations that it reads, once per input; weights and constants do not
                               count
27 - 31 output shape           the first four dimensions of the first output, then the product of all others
======= ====================== =====================================================================================

Classes are grouped by how a GPU runs them rather than by name, so that a new model rarely has a class that training
never saw. Terms stand for input channels, contracted length and head size at once: one column with one meaning for
every operator.

Every number from column 19 on enters as ``ln(1 + value)``, and what a node does not have is 0. Costs are products of
these numbers, which a network adds up far better as logarithms, and sizes span nine decades, which no scaling learned
from training data would bring together. ``F_s`` is left in plain units, for whoever scales it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dippm.costs.contraction import AttentionTable, GemmTable, RecurrentTable
from dippm.costs.convolution import ConvolutionTable
from dippm.costs.edges import IndexArray
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.polynomial import FloatArray, as_batches, evaluate, scatter_add
from dippm.costs.sizes import GraphSizes
from dippm.costs.streaming import PoolTable, ReductionTable, RowTable
from dippm.errors import UnsupportedError
from dippm.features.operator_order import OperatorOrder, order_operators
from dippm.graph import ACTIVATION_KINDS, Graph, Node, OpKind, TensorRole

__all__ = [
    "NODE_COLUMNS",
    "NODE_FEATURES",
    "OPERATOR_CLASSES",
    "STATIC_COLUMNS",
    "STATIC_FEATURES",
    "EdgeMode",
    "PmgnsSample",
    "check_batches",
    "compute_features_of_batches",
    "largest",
]

#: Nodes that are no operators: they launch no kernel. Weights and constants are tensors here, never nodes.
_FILTERED = frozenset({OpKind.VIEW})

#: The operator classes with their kinds; a convolution with groups is told from one without.
OPERATOR_CLASSES: dict[str, tuple[OpKind, ...]] = {
    "convolution": (OpKind.CONV,),
    "grouped_convolution": (),
    "transposed_convolution": (OpKind.CONV_TRANSPOSE,),
    "dense": (OpKind.LINEAR,),
    "matmul": (OpKind.MATMUL,),
    "attention": (OpKind.ATTENTION,),
    "recurrent": (OpKind.LSTM, OpKind.GRU, OpKind.RNN),
    "batch_norm": (OpKind.BATCH_NORM,),
    "other_norm": (
        OpKind.LAYER_NORM,
        OpKind.GROUP_NORM,
        OpKind.INSTANCE_NORM,
        OpKind.RMS_NORM,
        OpKind.LOCAL_RESPONSE_NORM,
    ),
    "softmax": (OpKind.SOFTMAX, OpKind.LOG_SOFTMAX),
    "relu": (OpKind.RELU,),
    "other_activation": tuple(sorted(ACTIVATION_KINDS - {OpKind.RELU})),
    "sum": (OpKind.ADD, OpKind.SUB),
    "other_elementwise": (
        OpKind.MUL,
        OpKind.DIV,
        OpKind.POW,
        OpKind.UNARY,
        OpKind.BINARY,
        OpKind.CAST,
        OpKind.QUANTIZE,
        OpKind.DEQUANTIZE,
        OpKind.DROPOUT,
    ),
    "pooling": (OpKind.MAX_POOL, OpKind.AVG_POOL),
    "reduction": (OpKind.GLOBAL_POOL, OpKind.REDUCE, OpKind.CUMULATIVE, OpKind.SORT),
    "concatenation": (OpKind.CONCAT,),
    "move": (
        OpKind.COPY,
        OpKind.PAD,
        OpKind.RESIZE,
        OpKind.GATHER,
        OpKind.SCATTER,
        OpKind.EMBEDDING,
        OpKind.GRID_SAMPLE,
        OpKind.FILL,
        OpKind.RANDOM,
    ),
    "other": (OpKind.FFT, OpKind.CONTROL_FLOW, OpKind.UNKNOWN),
}

_WINDOW = ("kernel_height", "kernel_width", "stride", "padding", "dilation", "groups")
_SHAPE = ("output_0", "output_1", "output_2", "output_3", "output_rest")
_LAST_AXIS = len(_SHAPE) - 1

#: Name of each column of the node features.
NODE_COLUMNS = (*OPERATOR_CLASSES, *_WINDOW, "terms", "input_elements", *_SHAPE)
#: Name of each static feature.
STATIC_COLUMNS = ("macs", "batch", "convolutions", "dense", "relu")
NODE_FEATURES = len(NODE_COLUMNS)
STATIC_FEATURES = len(STATIC_COLUMNS)

_COLUMN = {name: column for column, name in enumerate(NODE_COLUMNS)}
_CLASS_OF_KIND = {kind: _COLUMN[name] for name, kinds in OPERATOR_CLASSES.items() for kind in kinds}
_CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE})
_WINDOW_KINDS = _CONVOLUTIONS | {OpKind.MAX_POOL, OpKind.AVG_POOL}
_COMPUTED_ROLES = (TensorRole.INPUT, TensorRole.ACTIVATION, TensorRole.CACHE)

_ContractionTable = GemmTable | ConvolutionTable | AttentionTable | RecurrentTable
#: The families that multiply and accumulate.
_CONTRACTIONS: dict[WorkFamily, type[_ContractionTable]] = {
    WorkFamily.GEMM: GemmTable,
    WorkFamily.CONVOLUTION: ConvolutionTable,
    WorkFamily.ATTENTION: AttentionTable,
    WorkFamily.RECURRENT: RecurrentTable,
}


class EdgeMode(StrEnum):
    """Which edges connect the operators.

    ``DATA`` follows tensors from producer to consumer. ``CHAIN`` connects each operator to the next one in post-order
    and loses every branch, as the code published with the paper does; it is there to compare with.
    """

    DATA = "data"
    CHAIN = "chain"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PmgnsSample:
    """A model at a batch size as PMGNS sees it.

    Args:
        node_features: One row per operator in post-order, the columns of :data:`NODE_COLUMNS`.
        edge_index: Source and target of each edge, rows of ``node_features``.
        static_features: MACs of one forward call, batch size, numbers of convolutions, dense layers and ReLUs.

    Shapes:
        node_features: float32 [n, 32]; edge_index: int64 [2, E]; static_features: float64 [5].
    """

    node_features: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int64]
    static_features: npt.NDArray[np.float64]


def compute_features_of_batches(
    graph: Graph, batches: Sequence[int], edges: EdgeMode = EdgeMode.DATA
) -> list[PmgnsSample]:
    """Compute the features of a model at several batch sizes, with one traversal for all of them.

    Args:
        graph: The model.
        batches: Batch sizes, each at least 1.
        edges: Which edges connect the operators.

    Returns:
        A sample per batch size; all share one array of edges.

    Raises:
        UsageError: ``batch.invalid``.
        UnsupportedError: ``graph.fixed_batch`` where the model holds for another batch size only.
    """
    check_batches(graph, batches)
    at = as_batches(list(batches))
    sizes = GraphSizes.from_graph(graph)
    order = order_operators(graph, filtered=_FILTERED)
    macs, terms = _macs_and_terms(sizes, at)
    static_features = _static_features(graph, at, macs)
    node_features = _node_features(sizes, at, order, terms)
    edge_index = order.edges if edges is EdgeMode.DATA else _chain(len(order.nodes))
    return [
        PmgnsSample(node_features=of_nodes, edge_index=edge_index, static_features=of_graph)
        for of_nodes, of_graph in zip(node_features, static_features, strict=True)
    ]


def check_batches(graph: Graph, batches: Sequence[int]) -> None:
    """Refuse batch sizes that a model does not hold for.

    Raises:
        UnsupportedError: ``graph.fixed_batch``.
    """
    others = [batch for batch in batches if graph.fixed_batch is not None and batch != graph.fixed_batch]
    if others:
        raise UnsupportedError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason} "
            f"Got {others[0]} instead.",
            code="graph.fixed_batch",
            cure=f"Use batch {graph.fixed_batch}.",
        )


def _chain(count: int) -> IndexArray:
    places = np.arange(count, dtype=np.int64)
    return np.stack([places[:-1], places[1:]])


def _static_features(graph: Graph, batches: FloatArray, macs: FloatArray) -> FloatArray:
    """Equation 1 of the paper, [B, 5]."""
    kinds = [node.kind for node in graph.nodes]
    result = np.empty((len(batches), STATIC_FEATURES))
    result[:, 0] = macs
    result[:, 1] = batches
    result[:, 2] = sum(kind in _CONVOLUTIONS for kind in kinds)
    result[:, 3] = kinds.count(OpKind.LINEAR)
    result[:, 4] = kinds.count(OpKind.RELU)
    return result


def _node_features(
    sizes: GraphSizes, batches: FloatArray, order: OperatorOrder, terms: FloatArray
) -> npt.NDArray[np.float32]:
    """The node features at each batch size, [B, n, 32]."""
    nodes = [sizes.graph.nodes[position] for position in order.nodes]
    count = len(nodes)
    values = np.zeros((len(batches), count, NODE_FEATURES))
    windows = np.zeros((count, len(_WINDOW)))
    for place, node in enumerate(nodes):
        if node.kind in _WINDOW_KINDS:
            windows[place] = _window(node)
    values[:, :, _COLUMN[_WINDOW[0]] : _COLUMN["terms"]] = windows
    values[:, :, _COLUMN["terms"]] = terms[:, order.nodes]
    values[:, :, _COLUMN["input_elements"]] = _input_elements(sizes, batches)[:, order.nodes]
    values[:, :, _COLUMN[_SHAPE[0]] :] = _output_shapes(sizes, batches, order.nodes)
    # Where batch is cut by a constant, a dimension is below 0 for the smallest batches: there is nothing there.
    np.log1p(values.clip(min=0.0, out=values), out=values)
    classes = np.array([_CLASS_OF_KIND[node.kind] for node in nodes], dtype=np.int64)
    is_grouped = (classes == _COLUMN["convolution"]) & (windows[:, _WINDOW.index("groups")] > 1)
    classes[is_grouped] = _COLUMN["grouped_convolution"]
    values[:, np.arange(count), classes] = 1.0
    return values.astype(np.float32)


def _window(node: Node) -> tuple[int, ...]:
    """Kernel height and width, stride, padding, dilation and groups."""
    kernel = node.attributes.get("kernel")
    height, width = (1, 1, *kernel)[-2:] if isinstance(kernel, tuple) else (0, 0)
    # ONNX gives its poolings a dilation where PyTorch gives them none.
    of_convolution = (largest(node, "dilation"), largest(node, "groups")) if node.kind in _CONVOLUTIONS else (0, 0)
    return height, width, largest(node, "stride"), largest(node, "padding"), *of_convolution


def largest(node: Node, name: str) -> int:
    """The largest number of an attribute that holds one or several, 0 where the node has none."""
    value = node.attributes.get(name)
    if isinstance(value, tuple):
        return max(value, default=0)
    return value if isinstance(value, int) else 0


def _macs_and_terms(sizes: GraphSizes, batches: FloatArray) -> tuple[FloatArray, FloatArray]:
    """MACs of one forward call, and how many numbers each node combines in one output element, 0 for none.

    Only these rules of :class:`dippm.costs.workload.Workload` are asked: all of it takes twice as long as everything
    else here.

    Shapes:
        [B], [B, n_nodes].
    """
    nodes = sizes.graph.nodes
    members: dict[WorkFamily, list[int]] = {family: [] for family in WorkFamily}
    for position, node in enumerate(nodes):
        members[FAMILY_OF_KIND[node.kind]].append(position)
    of_family = {family: np.array(positions, dtype=np.int64) for family, positions in members.items()}
    total = np.zeros(len(batches))
    terms = np.zeros((len(batches), len(nodes)))
    for family, rules in _CONTRACTIONS.items():
        if not members[family]:
            continue
        table = rules.build(sizes, of_family[family])
        macs = evaluate(table.macs, batches)
        total += macs.sum(axis=1)
        outputs = evaluate(sizes.elements[sizes.outputs(table.table.node)], batches)
        terms[:, table.table.node] = macs / np.maximum(outputs, 1.0)
    row = RowTable.build(sizes, of_family[WorkFamily.ROW]).at(batches)
    terms[:, row.node] = row.width
    pool = PoolTable.build(sizes, of_family[WorkFamily.POOL]).at(batches)
    terms[:, pool.node] = pool.window
    reduction = ReductionTable.build(sizes, of_family[WorkFamily.REDUCTION]).at(batches)
    terms[:, reduction.node] = reduction.in_elements / np.maximum(reduction.out_elements, 1.0)
    return total, terms


def _input_elements(sizes: GraphSizes, batches: FloatArray) -> FloatArray:
    """Elements of all activations that each node reads, [B, n_nodes]."""
    is_computed = np.array([tensor.role in _COMPUTED_ROLES for tensor in sizes.graph.tensors], dtype=np.bool_)
    chosen = is_computed[sizes.edges.read_tensor]
    elements = sizes.elements[sizes.edges.read_tensor[chosen]]
    return evaluate(scatter_add(sizes.edges.read_node[chosen], elements, count=len(sizes.graph.nodes)), batches)


def _output_shapes(sizes: GraphSizes, batches: FloatArray, nodes: IndexArray) -> FloatArray:
    """Shape of each node's first output in five numbers, absent dimensions 0, [B, n, 5]."""
    outputs = sizes.outputs(nodes)
    fixed, per_sample = np.moveaxis(sizes.arrays.dimensions[sizes.arrays.shape[outputs], :-1], 2, 0)
    dimensions = per_sample * batches[:, None, None] + fixed
    result = np.zeros((len(batches), len(nodes), len(_SHAPE)))
    first = dimensions[:, :, :_LAST_AXIS]
    result[:, :, : first.shape[2]] = first
    # Dimensions that a tensor does not have are 1 in the arrays, so that they leave the product as it is.
    result[:, :, _LAST_AXIS] = dimensions[:, :, _LAST_AXIS:].prod(axis=2)
    result[:, np.arange(len(_SHAPE)) >= sizes.rank(outputs)[:, None]] = 0.0
    return result
