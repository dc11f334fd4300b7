"""A hash of what a graph computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from hashlib import blake2b

from dippm.graph.graph import Graph, Node, TensorRole, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["fingerprint"]

_DIGEST_BYTES = 16
_ABSENT = bytes(_DIGEST_BYTES)


def fingerprint(graph: Graph) -> str:
    """Hash a graph so that equal computations get equal hashes.

    It follows the kinds of operators, their attributes, the shapes, element types and roles of tensors, which tensor
    goes where, and the order of the model's inputs and outputs. It does not follow names, scopes, the framework, the
    numbering of tensors, the order of nodes that do not depend on each other, shared storage, lifetimes, and tensors
    that nothing reads.

    Every node is hashed with all that leads to it, and again with all that its results lead to; the hashes together,
    sorted, are the graph's. So one tensor that is read twice is told from two equal tensors read once each. Graphs
    that differ only in how exact twins are paired further on may share a hash; networks have no such places.

    Returns:
        32 hexadecimal digits, the same on every machine.
    """
    describe = _Descriptions()
    input_positions = {tensor: position for position, tensor in enumerate(graph.inputs)}

    # Forward: what leads to each node. ``ahead[t]`` stands for tensor t: a weight by its form, a result by its node.
    ahead = [_ABSENT] * len(graph.tensors)
    for index, tensor in enumerate(graph.tensors):
        if tensor.role is not TensorRole.ACTIVATION:
            ahead[index] = describe.tensor(tensor, input_positions.get(index, -1))
    of_node: list[bytes] = []
    for node in graph.nodes:
        parts = [describe.operator(node)]
        parts += [_ABSENT if index == -1 else ahead[index] for index in node.inputs]
        # The number of inputs is part of the operator's description, so that inputs and outputs cannot be confused.
        parts += [describe.tensor(graph.tensors[index], -1) for index in node.outputs]
        digest = _hash(b"".join(parts))
        of_node.append(digest)
        for slot, index in enumerate(node.outputs):
            ahead[index] = digest if slot == 0 else _hash(digest + slot.to_bytes(4, "big"))

    # Backward: what each tensor leads to, as one record per use; those of a result are taken by the node that wrote it.
    uses: defaultdict[int, list[bytes]] = defaultdict(list)
    for position, index in enumerate(graph.outputs):
        uses[index].append(b"output" + position.to_bytes(4, "big"))
    found = []
    for node, digest in zip(reversed(graph.nodes), reversed(of_node), strict=True):
        parts = [digest]
        for index in node.outputs:
            records = uses.pop(index, [])
            parts.append(len(records).to_bytes(4, "big"))
            parts += records if len(records) == 1 else sorted(records)
        behind = _hash(b"".join(parts))
        found.append(behind)
        for slot, index in enumerate(node.inputs):
            if index != -1:
                uses[index].append(behind + slot.to_bytes(4, "big"))
    found += [_hash(ahead[index] + b"".join(sorted(records))) for index, records in uses.items()]
    if graph.is_scored_in_fp32:
        found.append(_hash(b"scored in fp32"))
    for gradient in graph.own_gradients:
        # Of their operators it is enough to know which ones: what they read is what the model has kept.
        parts = [describe.operator(node) for node in gradient.nodes]
        parts += [describe.tensor(graph.tensors[index], -1) for node in gradient.nodes for index in node.outputs]
        found.append(_hash(b"".join(parts)))
    found.sort()
    return _hash(b"".join(found)).hex()


class _Descriptions:
    """Digests of what stands at nodes and tensors; a network repeats few of them many times."""

    def __init__(self) -> None:
        self._known: dict[Hashable, bytes] = {}

    def tensor(self, tensor: TensorSpec, input_position: int) -> bytes:
        key = (tensor.shape, tensor.dtype, tensor.role, input_position)
        digest = self._known.get(key)
        if digest is None:
            sizes = [(dim.per_sample, dim.fixed) for dim in tensor.shape]
            digest = self._add(key, ("tensor", sizes, tensor.dtype.value, tensor.role.value, input_position))
        return digest

    def operator(self, node: Node) -> bytes:
        # True and 1 are equal as keys and not as attributes, hence the types.
        attributes = tuple((name, type(value), value) for name, value in node.attributes.items())
        # Only the framework's name says what an operator without a kind does.
        name = node.source_op if node.kind is OpKind.UNKNOWN else ""
        key = (node.kind, name, len(node.inputs), len(node.outputs), attributes)
        digest = self._known.get(key)
        if digest is None:
            values = sorted((name, value) for name, _, value in attributes)
            digest = self._add(key, ("node", node.kind.value, name, len(node.inputs), len(node.outputs), values))
        return digest

    def _add(self, key: Hashable, description: Iterable[object]) -> bytes:
        digest = _hash(repr(description).encode())
        self._known[key] = digest
        return digest


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
