"""A graph in which every number format is written down: autocast's casts become nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dippm.costs.autocast import LOWERS_TO, own_formats
from dippm.costs.precision import Precision, TypePlan, whole_model_type
from dippm.costs.sizes import GraphSizes
from dippm.costs.training_step.step_builder import change_node, change_tensor
from dippm.graph import DType, Graph, Node, OpKind, TensorSpec

__all__ = ["with_explicit_types"]

_FORMATS = tuple(DType)


def with_explicit_types(graph: Graph, precision: Precision) -> tuple[Graph, frozenset[int]]:
    """Give every tensor the type in which it is stored at a precision, and every cast of autocast a node.

    Args:
        graph: The model as it was read.
        precision: Arithmetic of the run.

    Returns:
        The graph, and the copies of weights that autocast keeps until the forward pass ends.
    """
    has_own = bool(own_formats(graph.columns.attributes, None))
    if not (precision.is_autocast or whole_model_type(precision) or has_own):
        return graph, frozenset()
    sizes = GraphSizes.from_graph(graph)
    arrays, edges, types = sizes.arrays, sizes.edges, TypePlan.from_sizes(sizes, precision)

    tensors = list(graph.tensors)
    for index in np.flatnonzero(types.tensor_format != arrays.dtype).tolist():
        tensors[index] = change_tensor(tensors[index], dtype=_FORMATS[types.tensor_format[index]])
    casts: dict[int, list[tuple[int, DType, bool]]] = {}
    for node, tensor, target, is_cached in zip(
        types.casts.node.tolist(),
        types.casts.tensor.tolist(),
        types.casts.to_format.tolist(),
        types.casts.is_cached.tolist(),
        strict=True,
    ):
        casts.setdefault(node, []).append((tensor, _FORMATS[target], is_cached))
    reads_other: dict[int, set[int]] = {}
    for read in np.flatnonzero(types.read_format != types.tensor_format[edges.read_tensor]).tolist():
        reads_other.setdefault(int(edges.read_node[read]), set()).add(int(edges.read_tensor[read]))

    nodes: list[Node] = []
    kept: dict[int, int] = {}
    kept_copies: set[int] = set()
    repeated = _repeated(graph)
    for position, node in enumerate(graph.nodes):
        copies: dict[int, int] = {}
        for tensor, target, is_cached in casts.get(position, ()):
            # Operands of products are cast before they are repeated for the copies that these read.
            once = repeated.get(tensor, tensor) if node.kind is OpKind.COPY else tensor
            name = f"{tensors[tensor].name}.cast"
            tensors.append(TensorSpec(name=name, shape=tensors[once].shape, dtype=target))
            copy = len(tensors) - 1
            if is_cached:
                kept_copies.add(copy)
            nodes.append(
                Node(kind=OpKind.CAST, inputs=(once,), outputs=(copy,), scope=node.scope, source_op="autocast")
            )
            if once != tensor:
                tensors.append(TensorSpec(name=name, shape=tensors[tensor].shape, dtype=target, alias_of=copy))
                view, expand = len(tensors) - 1, {"function": "expand"}
                nodes.append(
                    Node(kind=OpKind.VIEW, inputs=(copy,), outputs=(view,), attributes=expand, scope=node.scope)
                )
                copy = view
            copies[tensor] = copy
            if is_cached:
                kept[tensor] = copy
        changed = reads_other.get(position, ())
        if changed:
            inputs = tuple(
                copies.get(index, kept.get(index, index)) if index in changed else index for index in node.inputs
            )
            node = change_node(node, inputs=inputs)
        if LOWERS_TO in node.attributes:
            # What it asks for is written down.
            rest = {name: value for name, value in node.attributes.items() if name != LOWERS_TO}
            node = change_node(node, attributes=rest)
        nodes.append(node)
    return replace(graph, tensors=tuple(tensors), nodes=tuple(nodes)), frozenset(kept_copies)


def _repeated(graph: Graph) -> dict[int, int]:
    """What each tensor that repeats another one repeats."""
    return {
        node.outputs[0]: node.inputs[0]
        for node in graph.nodes
        if node.kind is OpKind.VIEW and node.attributes.get("function") == "expand"
    }
