"""Nodes and tensors of a training step while it is being made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from dippm.graph import Attribute, Dim, DType, Graph, Node, OpKind, Shape, TensorRole, TensorSpec

__all__ = ["PERMUTING", "StepBuilder", "change_node", "change_tensor", "count_elements"]

PERMUTING = frozenset({"transpose", "permute", "t", "movedim", "swapaxes", "numpy_T", "adjoint"})
"""Views that change the order of dimensions."""

# Two sizes with equal counts at both batches are taken for equal: they are polynomials of the batch.
_PROBES = (2, 5)


@lru_cache(maxsize=4096)
def count_elements(shape: Shape) -> tuple[int, ...]:
    """Elements at two batch sizes: equal for shapes that hold equally many at every batch."""
    counts = []
    for batch in _PROBES:
        count = 1
        for dim in shape:
            count *= dim.per_sample * batch + dim.fixed
        counts.append(count)
    return tuple(counts)


def change_node(
    node: Node,
    *,
    inputs: tuple[int, ...] | None = None,
    outputs: tuple[int, ...] | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    releases: tuple[int, ...] | None = None,
) -> Node:
    """A node with some fields changed; :func:`dataclasses.replace` takes several times as long."""
    return Node(
        kind=node.kind,
        inputs=node.inputs if inputs is None else inputs,
        outputs=node.outputs if outputs is None else outputs,
        attributes=node.attributes if attributes is None else attributes,
        scope=node.scope,
        source_op=node.source_op,
        releases=node.releases if releases is None else releases,
    )


def change_tensor(tensor: TensorSpec, *, dtype: DType | None = None, role: TensorRole | None = None) -> TensorSpec:
    """A tensor with another type or role; see :func:`change_node`."""
    return TensorSpec(
        name=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype if dtype is None else dtype,
        role=tensor.role if role is None else role,
        alias_of=tensor.alias_of,
        storage_bytes_per_sample=tensor.storage_bytes_per_sample,
        storage_bytes_fixed=tensor.storage_bytes_fixed,
    )


class StepBuilder:
    """Appends to a graph.

    Args:
        graph: The forward graph; its tensors keep their numbers, its nodes are to be appended one by one.

    Attributes:
        tensors: All tensors.
        nodes: All nodes.
        phases: Phase of each node.
        permuted: Tensors whose memory is not in the order of their dimensions, as far as is followed here: a second
            permutation is taken to undo the first.
        saved_inputs: For the result of an operator that overwrites an input which its gradient needs, the copy of it.
        twins: Forward node of each node of the backward pass, -1 for others.
        chain_ends: For each node of a chain, see :mod:`dippm.costs.training_step.gradient_chains`, its last node.
        phase: Phase of the nodes that are appended.
        twin: Their forward node.
        scope: Their scope.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: list[TensorSpec] = list(graph.tensors)
        self.nodes: list[Node] = []
        self.phases: list[int] = []
        self.twins: list[int] = []
        self.permuted: set[int] = set()
        self.views: set[int] = set()
        self.saved_inputs: dict[int, int] = {}
        self.chain_ends: dict[int, int] = {}
        self.phase = 0
        self.twin = -1
        self.scope = ""

    def shape(self, tensor: int) -> Shape:
        """Dimensions of a tensor."""
        return self.tensors[tensor].shape

    def dtype(self, tensor: int) -> DType:
        """Type of a tensor."""
        return self.tensors[tensor].dtype

    def base(self, tensor: int) -> int:
        """The tensor that owns a tensor's storage."""
        owner = self.tensors[tensor].alias_of
        return tensor if owner is None else owner

    def count_numbers(self, tensor: int) -> tuple[int, ...]:
        """Real numbers of a tensor at two batch sizes, see :func:`count_elements`; a complex element is two."""
        parts = 2 if self.dtype(tensor).is_complex else 1
        return tuple(parts * count for count in count_elements(self.shape(tensor)))

    def is_whole(self, tensor: int) -> bool:
        """Whether a tensor fills its storage, each element once."""
        base = self.base(tensor)
        return base == tensor or self.count_numbers(base) == self.count_numbers(tensor)

    def new_tensor(
        self,
        shape: Shape,
        dtype: DType,
        *,
        name: str = "",
        role: TensorRole = TensorRole.ACTIVATION,
        alias_of: int | None = None,
    ) -> int:
        """Add a tensor, which shares the storage of ``alias_of`` where that is given."""
        base = None if alias_of is None else self.base(alias_of)
        self.tensors.append(TensorSpec(name=name, shape=shape, dtype=dtype, role=role, alias_of=base))
        return len(self.tensors) - 1

    def new_like(self, tensor: int, *, dtype: DType | None = None) -> int:
        """Add a tensor of the same shape, and type unless another is given."""
        like = self.tensors[tensor]
        self.tensors.append(
            TensorSpec(name=f"{like.name}.grad", shape=like.shape, dtype=like.dtype if dtype is None else dtype)
        )
        return len(self.tensors) - 1

    def append(self, node: Node) -> None:
        """Append a node as it is."""
        self.nodes.append(node)
        self.phases.append(self.phase)
        self.twins.append(self.twin)

    def run(
        self,
        kind: OpKind,
        inputs: Sequence[int],
        outputs: Sequence[int],
        source_op: str = "",
        *,
        function: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Append a new node; ``function`` is one of its attributes."""
        given = {} if attributes is None else dict(attributes)
        if function:
            given["function"] = function
        self.append(
            Node(
                kind=kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attributes=given,
                scope=self.scope,
                source_op=source_op,
            )
        )

    def view(self, tensor: int, shape: Shape, function: str = "view", *, dtype: DType | None = None) -> int:
        """A tensor on the same storage, of the same type unless another is given."""
        result = self.new_tensor(
            shape, self.dtype(tensor) if dtype is None else dtype, name=self.tensors[tensor].name, alias_of=tensor
        )
        self.run(OpKind.VIEW, (tensor,), (result,), function=function)
        self.views.add(result)
        if (tensor in self.permuted) != (function in PERMUTING):
            self.permuted.add(result)
        return result

    def is_permuted(self, tensor: int) -> bool:
        """Whether a tensor's memory is in another order than its dimensions."""
        return tensor in self.permuted

    def as_matrix(self, tensor: int) -> int | None:
        """A tensor as rows of its last dimension; None where no dimension can hold that many rows."""
        shape = self.shape(tensor)
        if len(shape) == 2:
            return tensor
        rows = Dim(0, 1)
        for dim in shape[:-1]:
            if rows.per_sample and dim.per_sample:
                return None
            rows = Dim(
                rows.per_sample * dim.fixed + dim.per_sample * rows.fixed,
                rows.fixed * dim.fixed,
            )
        return self.view(tensor, (rows, shape[-1]))

    def transposed(self, tensor: int) -> int:
        """A tensor with its last two dimensions exchanged, on the same storage."""
        shape = self.shape(tensor)
        return self.view(tensor, (*shape[:-2], shape[-1], shape[-2]), "transpose")
