"""A graph that passes may change: nodes taken out, put in and rewired, tensors added."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.graph import MOST_RUNS, Attribute, Graph, Node, TensorRole, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["GraphEditor"]


_LOADED_ROLES = frozenset({TensorRole.PARAMETER, TensorRole.BUFFER})


class GraphEditor:
    """A mutable copy of a graph, with the readers and the writer of every tensor at hand.

    Args:
        graph: The graph to start from; it stays as it is.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors: list[TensorSpec] = list(graph.tensors)
        self.nodes: list[Node | None] = list(graph.nodes)
        self.outputs: list[int] = list(graph.outputs)
        self._inserted: dict[int, list[Node]] = {}
        self._producer = graph.producers()
        self._readers: list[list[int]] = [[] for _ in self.tensors]
        for position, node in enumerate(graph.nodes):
            for index in node.inputs:
                if index >= 0:
                    self._readers[index].append(position)
        for index in graph.outputs:
            self._readers[index].append(-1)
        # Weights that nothing read to begin with are loaded all the same.
        self._idle = {
            index
            for index, tensor in enumerate(graph.tensors)
            if tensor.role in _LOADED_ROLES and tensor.alias_of is None and not self._readers[index]
        }

    def node(self, position: int) -> Node:
        """The node at a position that still holds one."""
        node = self.nodes[position]
        if node is None:
            raise LookupError(f"position {position} holds no node any more")
        return node

    def writer(self, tensor: int) -> int:
        """Position of the node that writes a tensor; -1 for inputs, weights and removed nodes."""
        position = self._producer[tensor]
        return position if position >= 0 and self.nodes[position] is not None else -1

    def writer_of_kind(self, tensor: int, kind: OpKind, function: str | None = None) -> Node | None:
        """The node that writes a tensor, if it is of that kind and function."""
        position = self.writer(tensor)
        if position < 0:
            return None
        node = self.node(position)
        is_match = node.kind is kind and (function is None or node.attributes.get("function") == function)
        return node if is_match else None

    def inner_writer(self, tensor: int, kind: OpKind) -> Node | None:
        """The node that writes a tensor, if it is of that kind and the tensor is read once."""
        return self.writer_of_kind(tensor, kind) if self.only_reader(tensor) >= 0 else None

    def readers(self, tensor: int) -> list[int]:
        """Positions of the nodes that read a tensor, in order; -1 stands for the graph's output."""
        return sorted(set(self._live_readers(tensor)))

    def only_reader(self, tensor: int) -> int:
        """Position of the one node that reads a tensor; -1 where there are several, none, or it is an output."""
        found = -1
        for reader in self._live_readers(tensor):
            if reader == -1 or found not in (-1, reader):
                return -1
            found = reader
        return found

    def _live_readers(self, tensor: int) -> Iterator[int]:
        for reader in self._readers[tensor]:
            node = None if reader < 0 else self.nodes[reader]
            if reader < 0 or (node is not None and tensor in node.inputs):
                yield reader

    def is_weight(self, tensor: int) -> bool:
        """Whether a tensor is stored with the model, or a view of one that is."""
        role = self.tensors[tensor].role
        if role is not TensorRole.ACTIVATION:
            return role is not TensorRole.INPUT
        node = self.writer_of_kind(tensor, OpKind.VIEW)
        return node is not None and self.is_stored(node.inputs[0])

    def is_stored(self, tensor: int) -> bool:
        """Whether a tensor itself is stored with the model."""
        return self.tensors[tensor].role in (TensorRole.PARAMETER, TensorRole.BUFFER, TensorRole.CONSTANT)

    def is_number(self, tensor: int) -> bool:
        """Whether a tensor is one number that is stored with the model."""
        return self.is_stored(tensor) and all(dim == (0, 1) for dim in self.tensors[tensor].shape)

    def is_stored_or_cast(self, tensor: int) -> bool:
        """Whether a tensor is stored with the model, or a cast of one that is, as mixed precision makes one."""
        cast = self.writer_of_kind(tensor, OpKind.CAST)
        return self.is_stored(tensor if cast is None else cast.inputs[0])

    def before_cast(self, tensor: int) -> int:
        """What a tensor is a cast of, where nothing else reads either; the tensor itself where it is none."""
        cast = self.writer_of_kind(tensor, OpKind.CAST)
        is_alone = cast is not None and self.only_reader(tensor) >= 0 and self.only_reader(cast.inputs[0]) >= 0
        return cast.inputs[0] if cast is not None and is_alone else tensor

    def after_cast(self, tensor: int) -> int:
        """What a tensor is cast to, where nothing else reads it; the tensor itself where it is not."""
        reader = self.only_reader(tensor)
        return self.node(reader).outputs[0] if reader >= 0 and self.node(reader).kind is OpKind.CAST else tensor

    def remove(self, position: int) -> None:
        """Take a node out."""
        self.nodes[position] = None

    def replace(self, position: int, node: Node) -> None:
        """Put another node in a node's place; its outputs must be new or written there before."""
        for index in node.inputs:
            if index >= 0:
                self._readers[index].append(position)
        self.nodes[position] = node
        for index in node.outputs:
            self._producer[index] = position

    def substitute(self, old: int, new: int) -> None:
        """Let everything that reads a tensor read another one, which must be written before."""
        for position in self.readers(old):
            if position < 0:
                self.outputs = [new if index == old else index for index in self.outputs]
                self._readers[new].append(-1)
            else:
                node = self.node(position)
                inputs = tuple(new if index == old else index for index in node.inputs)
                self.replace(position, dataclasses.replace(node, inputs=inputs))
        self._readers[old] = []

    def insert_before(self, position: int, node: Node) -> None:
        """Put a node in front of another one."""
        self._inserted.setdefault(position, []).append(node)

    def add_tensor(self, name: str, shape: Shape, dtype: DType, *, role: TensorRole = TensorRole.ACTIVATION) -> int:
        """A new tensor."""
        self.tensors.append(TensorSpec(name=name, shape=shape, dtype=dtype, role=role))
        self._producer.append(-1)
        self._readers.append([])
        return len(self.tensors) - 1

    def make_node(
        self,
        kind: OpKind,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        like: Node,
        source_op: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Node:
        """A node that belongs where another one does, and runs as often."""
        given = dict(attributes or {})
        if MOST_RUNS in like.attributes:
            given[MOST_RUNS] = like.attributes[MOST_RUNS]
        return Node(
            kind=kind,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=given,
            scope=like.scope,
            source_op=source_op or like.source_op,
        )

    def drop_unused(self) -> set[int]:
        """Take out the nodes that lead to no output.

        Returns:
            The tensors that are still needed; weights that no node read when the editor was made are among them.
        """
        needed = {*self.outputs, *self._idle}
        for position in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[position]
            if node is not None and needed.isdisjoint(node.outputs):
                self.nodes[position] = node = None
            if node is not None:
                self._need(node, needed)
            inserted = self._inserted.get(position)
            if inserted:
                # What was put in front of a node may be needed where the node itself no longer is.
                kept: list[Node] = []
                for other in reversed(inserted):
                    if not needed.isdisjoint(other.outputs):
                        self._need(other, needed)
                        kept.append(other)
                self._inserted[position] = kept[::-1]
        return needed

    def _need(self, node: Node, needed: set[int]) -> None:
        needed.update(node.inputs)
        # A view keeps its storage in the graph, even one that no node reads any more.
        for index in node.outputs:
            base = self.tensors[index].alias_of
            if base is not None:
                needed.add(base)

    def to_graph(self) -> Graph:
        """The graph as it stands, without what the changes left unused, tensors in the order they appear."""
        needed = self.drop_unused()
        nodes: list[Node] = []
        for position, node in enumerate(self.nodes):
            nodes.extend(self._inserted.get(position, ()))
            if node is not None:
                nodes.append(node)
        return self._renumber(nodes, needed)

    def _renumber(self, nodes: list[Node], needed: set[int]) -> Graph:
        graph = self._graph
        order: dict[int, int] = {}
        for index in graph.inputs:
            order.setdefault(index, len(order))
        for index, tensor in enumerate(self.tensors):
            if tensor.role is not TensorRole.ACTIVATION and index in needed:
                order.setdefault(index, len(order))
        for node in nodes:
            for index in node.outputs:
                order.setdefault(index, len(order))
        tensors = []
        for index in order:
            tensor = self.tensors[index]
            base = tensor.alias_of
            tensors.append(tensor if base is None or order[base] == base else replace(tensor, alias_of=order[base]))

        # -1, an input that is left out, looks up the number beyond the last: itself again.
        table = [order.get(index, -1) for index in range(len(self.tensors))] + [-1]

        def renumbered(indices: Sequence[int]) -> tuple[int, ...]:
            return tuple([table[index] for index in indices])

        return replace(
            graph,
            tensors=tuple(tensors),
            nodes=tuple(
                Node(
                    kind=node.kind,
                    inputs=renumbered(node.inputs),
                    outputs=renumbered(node.outputs),
                    attributes=node.attributes,
                    scope=node.scope,
                    source_op=node.source_op,
                    releases=renumbered([index for index in node.releases if index in order]),
                )
                for node in nodes
            ),
            inputs=renumbered(graph.inputs),
            outputs=renumbered(self.outputs),
        )
