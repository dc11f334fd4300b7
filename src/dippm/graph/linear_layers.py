"""Which nodes of a graph are linear layers, by the matrix that they multiply with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.graph import Graph, Node, TensorRole, TensorSpec
from dippm.graph.op_kind import ACTIVATION_KINDS, ARITHMETIC_KINDS, OpKind

__all__ = [
    "count_all_quantised",
    "count_frozen",
    "count_quantised",
    "find_multiplied_weights",
    "find_output_layers",
    "find_stacks",
    "find_weight",
    "is_of_layer",
    "is_quantised",
    "layer_of",
]

_PRODUCTS = (OpKind.LINEAR, OpKind.MATMUL)
_STORED = frozenset({TensorRole.PARAMETER, TensorRole.BUFFER})
_WEIGHT = 1
_MATRIX = 2
_WHOLE_BITS = 16
_WEIGHT_SUFFIX = ".weight"
_LAYER = (_WEIGHT_SUFFIX, ".bias")
# What hands on the numbers of a model's last layer where it reads nothing else that moves: its results are the outputs
# in another form, in probabilities, scaled or capped.
_PASSING = (
    frozenset({OpKind.VIEW, OpKind.CAST, OpKind.COPY, OpKind.SOFTMAX, OpKind.LOG_SOFTMAX, OpKind.UNARY})
    | ACTIVATION_KINDS
    | ARITHMETIC_KINDS
)
_MOVING = frozenset({TensorRole.INPUT, TensorRole.ACTIVATION})


def find_weight(tensors: Sequence[TensorSpec], node: Node, *, cast_from: Mapping[int, int] | None = None) -> int:
    """The matrix that a node multiplies with and that is stored, whole; -1 where there is none.

    Args:
        tensors: The graph's tensors.
        node: Any node.
        cast_from: For copies of another type what each is a copy of.
    """
    if node.kind not in _PRODUCTS or "contracted" in node.attributes:
        return -1
    index = node.inputs[_WEIGHT] if cast_from is None else cast_from.get(node.inputs[_WEIGHT], node.inputs[_WEIGHT])
    right = tensors[index]
    owner = index if right.alias_of is None else right.alias_of
    weight = tensors[owner]
    is_matrix = weight.role in _STORED and len(weight.shape) == len(right.shape) == _MATRIX
    return owner if is_matrix and _elements(weight.shape) == _elements(right.shape) else -1


def find_multiplied_weights(graph: Graph) -> frozenset[int]:
    """What is stored and multiplied with, whole or in parts: matrices, and stacks of them, as experts have."""
    tensors = graph.tensors
    right = {node.inputs[_WEIGHT] for node in graph.nodes if node.kind in _PRODUCTS} - {-1}
    owners = {tensors[index].alias_of for index in right} | right
    return frozenset(index for index in owners if index is not None and tensors[index].role in _STORED)


def find_stacks(graph: Graph) -> frozenset[int]:
    """Those of them that are more than one matrix, as experts of transformers have their weights: no linear layer's."""
    return frozenset(index for index in find_multiplied_weights(graph) if len(graph.tensors[index].shape) > _MATRIX)


def is_quantised(weight: TensorSpec) -> bool:
    """Whether a weight is stored in fewer than 16 bits."""
    return weight.dtype.bits < _WHOLE_BITS and weight.role in _STORED


def count_quantised(graph: Graph) -> dict[DType, int]:
    """Number of quantised weights of products by their type; a mask or a table of bytes beside them is none."""
    return _count_quantised(graph, find_multiplied_weights(graph))


def count_all_quantised(graph: Graph) -> dict[DType, int]:
    """The same of all quantised weights: those too that a node of their own unpacks, as in ONNX files, or looks up."""
    own = {
        index
        for index, weight in enumerate(graph.tensors)
        if weight.role is TensorRole.PARAMETER and weight.alias_of is None and weight.dtype is not DType.BOOL
    }
    return _count_quantised(graph, find_multiplied_weights(graph) | own)


def _count_quantised(graph: Graph, chosen: Iterable[int]) -> dict[DType, int]:
    counts: Counter[DType] = Counter()
    for index in sorted(chosen):
        weight = graph.tensors[index]
        if is_quantised(weight):
            counts[weight.dtype] += _elements(weight.shape)
    return dict(counts)


def count_frozen(graph: Graph) -> int:
    """Number of weights and biases that stay as they are where adapters are trained, also of layers frozen before."""
    return sum(
        _elements(tensor.shape)
        for tensor in graph.tensors
        if tensor.alias_of is None
        and (tensor.role is TensorRole.PARAMETER or (tensor.role is TensorRole.BUFFER and tensor.name.endswith(_LAYER)))
    )


def is_of_layer(weight: TensorSpec) -> bool:
    """Whether what is stored is a layer's weight, also a frozen one, and no table that a model computes with.

    Where nothing trains a weight it is a buffer, as such a table is, but a module calls it its weight.
    """
    return weight.role is TensorRole.PARAMETER or (
        weight.role is TensorRole.BUFFER and weight.name.endswith(_WEIGHT_SUFFIX)
    )


def layer_of(weight: TensorSpec) -> str:
    """Name of the layer that a weight is of."""
    return weight.name.removesuffix(_WEIGHT_SUFFIX)


def find_output_layers(graph: Graph) -> frozenset[int]:
    """Weights of the linear layers that write the model's first output, on which a loss is taken."""
    reached = set(graph.outputs[:1])
    found = set()
    for node in reversed(graph.nodes):
        if reached.isdisjoint(node.outputs):
            continue
        moving = {index for index in node.inputs if index >= 0 and graph.tensors[index].role in _MOVING}
        if node.kind in _PASSING and len(moving) == 1:
            reached.update(moving)
        elif (weight := find_weight(graph.tensors, node)) >= 0:
            found.add(weight)
    return frozenset(found)


def _elements(shape: Shape) -> int:
    return math.prod(size.fixed for size in shape)
