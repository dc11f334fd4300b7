"""A graph as plain JSON values, and back without loss."""

from __future__ import annotations

from typing import Any

from dippm.graph.dim import Dim, Shape
from dippm.graph.dtype import DType
from dippm.graph.graph import Graph, Node, OwnGradient, TensorRole, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["graph_from_dict", "graph_to_dict"]


def graph_to_dict(graph: Graph) -> dict[str, object]:
    """A graph as what JSON can hold; equal graphs give equal text."""
    return {
        "source": graph.source,
        "framework": graph.framework,
        "tensors": [
            [
                tensor.name,
                tensor.shape,
                tensor.dtype.value,
                tensor.role.value,
                tensor.alias_of,
                tensor.storage_bytes_per_sample,
                tensor.storage_bytes_fixed,
            ]
            for tensor in graph.tensors
        ],
        "nodes": list(map(_node_to_list, graph.nodes)),
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "has_lifetimes": graph.has_lifetimes,
        "fixed_batch": graph.fixed_batch,
        "fixed_batch_reason": graph.fixed_batch_reason,
        "smallest_batch": graph.smallest_batch,
        "proved_batch": graph.proved_batch,
        "other_batches": graph.other_batches,
        "known_batches": graph.known_batches,
        "keeps_fp32_parts": graph.keeps_fp32_parts,
        "is_scored_in_fp32": graph.is_scored_in_fp32,
        "own_gradients": [
            [
                gradient.name,
                gradient.outputs,
                gradient.given,
                gradient.inputs,
                gradient.results,
                gradient.kept,
                gradient.held,
                list(map(_node_to_list, gradient.nodes)),
            ]
            for gradient in graph.own_gradients
        ],
        "unsupported_ops": dict(graph.unsupported_ops),
        "warnings": graph.warnings,
    }


def graph_from_dict(values: dict[str, Any]) -> Graph:
    """The graph that :func:`graph_to_dict` wrote down.

    Raises:
        ModelReadError: ``graph.invalid``.
        KeyError, TypeError, ValueError, IndexError, AttributeError: It is not what was written. Types are not all
            looked at.
    """
    return Graph(
        source=values["source"],
        framework=values["framework"],
        tensors=_tensors_from_lists(values["tensors"]),
        nodes=tuple(_node_from_list(row) for row in values["nodes"]),
        inputs=tuple(values["inputs"]),
        outputs=tuple(values["outputs"]),
        has_lifetimes=values["has_lifetimes"],
        fixed_batch=values["fixed_batch"],
        fixed_batch_reason=values["fixed_batch_reason"],
        smallest_batch=values.get("smallest_batch", 1),
        proved_batch=values.get("proved_batch"),
        other_batches=tuple(values.get("other_batches", ())),
        known_batches=tuple(values.get("known_batches", ())),
        keeps_fp32_parts=values.get("keeps_fp32_parts", False),
        is_scored_in_fp32=values.get("is_scored_in_fp32", False),
        own_gradients=tuple(map(_own_gradient_from_list, values.get("own_gradients", ()))),
        unsupported_ops=values["unsupported_ops"],
        warnings=tuple(values["warnings"]),
    )


def _tensors_from_lists(rows: list[list[Any]]) -> tuple[TensorSpec, ...]:
    # Most tensors have the shape of another one: they share it.
    shapes: dict[Shape, Shape] = {}
    return tuple(_tensor_from_list(row, shapes) for row in rows)


def _tensor_from_list(row: list[Any], shapes: dict[Shape, Shape]) -> TensorSpec:
    name, dims, dtype, role, alias_of, per_sample, fixed = row
    shape = tuple(Dim(*dim) for dim in dims)
    return TensorSpec(
        name=name,
        shape=shapes.setdefault(shape, shape),
        dtype=DType(dtype),
        role=TensorRole(role),
        alias_of=alias_of,
        storage_bytes_per_sample=per_sample,
        storage_bytes_fixed=fixed,
    )


def _own_gradient_from_list(row: list[Any]) -> OwnGradient:
    name, outputs, given, inputs, results, kept, held, nodes = row
    return OwnGradient(
        name=name,
        outputs=tuple(outputs),
        given=tuple(given),
        inputs=tuple(inputs),
        results=tuple(results),
        kept=tuple(kept),
        held=tuple(held),
        nodes=tuple(map(_node_from_list, nodes)),
    )


def _node_to_list(node: Node) -> list[object]:
    return [
        node.kind.value,
        node.inputs,
        node.outputs,
        dict(node.attributes),
        node.scope,
        node.source_op,
        node.releases,
    ]


def _node_from_list(row: list[Any]) -> Node:
    kind, inputs, outputs, attributes, scope, source_op, releases = row
    return Node(
        kind=OpKind(kind),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes={name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()},
        scope=scope,
        source_op=source_op,
        releases=tuple(releases),
    )
