"""The layers of a graph: its convolutions, each with the batch norm and the activation that alone read it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np

from dippm.costs.conditions import Conditions
from dippm.costs.memory_format import MemoryFormats
from dippm.costs.workload import Workload
from dippm.graph import Graph, Node, OpKind
from dippm.measuring.layer import ACTIVATIONS, Layer

__all__ = ["GraphLayer", "list_layers"]

_IMAGE_RANK = 4
# Bytes of an element that a layer may read: float64 and whole numbers run other kernels.
_IMAGE_BYTES = (2, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphLayer:
    """A layer and where it stands.

    Args:
        layer: The layer.
        nodes: Its nodes, as many as it has operators.
    """

    layer: Layer
    nodes: tuple[int, ...]


def list_layers(graph: Graph, batch: int, conditions: Conditions) -> Iterator[GraphLayer]:
    """All layers of a forward graph with convolutions of images, equal ones too, in the graph's order.

    Args:
        graph: The graph.
        batch: Its batch.
        conditions: Precision and layout; the mode is inference.
    """
    work = Workload.from_graph(graph, conditions.precision)
    is_read_last = MemoryFormats.of_layouts(work.sizes)[conditions.layout].is_read_last
    readers = _Readers(graph)
    storage = work.sizes.arrays.storage[work.sizes.outputs(np.arange(len(graph.nodes)))]
    for position, node in enumerate(graph.nodes):
        if node.kind is not OpKind.CONV:
            continue
        image = tuple(dim.at(batch) for dim in graph.tensors[node.inputs[0]].shape)
        weight = tuple(dim.at(batch) for dim in graph.tensors[node.inputs[1]].shape)
        image_bytes = int(work.types.tensor_bytes[node.inputs[0]])
        if len(image) != _IMAGE_RANK or image_bytes not in _IMAGE_BYTES or not _is_symmetric(node, len(image) - 2):
            continue
        nodes = [position]
        norm = readers.only_reader(position, {OpKind.BATCH_NORM})
        nodes += [norm] if norm is not None else []
        activation = readers.only_reader(nodes[-1], ACTIVATIONS)
        nodes += [activation] if activation is not None else []
        attributes = node.attributes
        yield GraphLayer(
            nodes=tuple(nodes),
            layer=Layer(
                precision=conditions.precision,
                layout=conditions.layout,
                image=image,  # type: ignore[arg-type]
                image_bytes=image_bytes,
                is_read_last=bool(is_read_last[position]) and max(image[2:]) > 1,
                channels=weight[0],
                **{name: tuple(attributes[name]) for name in ("kernel", "stride", "padding", "dilation")},  # type: ignore[arg-type]
                groups=int(attributes["groups"]),  # type: ignore[arg-type]
                has_bias=len(node.inputs) > 2 and node.inputs[2] >= 0,
                has_norm=norm is not None,
                activation=None if activation is None else graph.nodes[activation].kind,
                is_in_place=activation is not None and bool(storage[nodes[-1]] == storage[nodes[-2]]),
            ),
        )


def _is_symmetric(node: Node, rank: int) -> bool:
    return all(
        len(np.atleast_1d(node.attributes[name])) == rank for name in ("kernel", "stride", "padding", "dilation")
    )


class _Readers:
    """Which nodes read each tensor."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers: dict[int, list[int]] = {}
        for position, node in enumerate(graph.nodes):
            for tensor in set(node.inputs):
                self._readers.setdefault(tensor, []).append(position)

    def only_reader(self, position: int, kinds: Container[OpKind]) -> int | None:
        """The one node that reads what a node writes; None where it is of another kind or there is not one."""
        output = self._graph.nodes[position].outputs[0]
        readers = self._readers.get(output, [])
        is_only = len(readers) == 1 and output not in self._graph.outputs
        return readers[0] if is_only and self._graph.nodes[readers[0]].kind in kinds else None
