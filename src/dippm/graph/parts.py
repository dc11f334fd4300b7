"""What a graph is made of: operators and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.op_kind import OpKind

__all__ = [
    "MOST_DIMENSIONS",
    "MOST_RUNS",
    "OWN_GRADIENT",
    "Attribute",
    "Node",
    "OwnGradient",
    "TensorRole",
    "TensorSpec",
]

Attribute = bool | int | float | str | tuple[int, ...]

#: Most dimensions of a tensor: what NumPy and PyTorch's iterators take.
MOST_DIMENSIONS = 64

#: Attribute of an operator of any kind in a loop that is not written out to its end: how many times as often as in the
#: graph it may run.
MOST_RUNS = "most_runs"

#: Attribute of an operator whose gradient the model defines itself: the name of the :class:`OwnGradient`.
OWN_GRADIENT = "own_gradient"


class TensorRole(StrEnum):
    """What a tensor is to the model.

    ``PARAMETER`` is trained, ``BUFFER`` is kept with the model and not trained (running means, index tables),
    ``CONSTANT`` is small and made while the graph was read, ``ACTIVATION`` is computed by a node. Only a training step
    has the next two: ``GRADIENT`` is that of a parameter and is kept until the step ends, ``OPTIMIZER_STATE`` is made
    in the first step and kept from then on. ``CACHE`` is what a decoder keeps from one token to the next; no node
    writes what it had before the step, which is there from the start and given back where ``Node.releases`` says so.
    """

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    CACHE = "cache"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """Shape and type of one tensor; never its values.

    Args:
        name: Name in the model; unique where the framework gives unique names, informative only.
        shape: Dimensions, each ``a * N + b`` of the batch size N.
        dtype: Element type.
        role: What the tensor is to the model.
        alias_of: Index of the tensor whose storage it shares (a view, or the result of an in-place operator);
            None where it owns its storage. Always an index lower than its own and itself not an alias.
        storage_bytes_per_sample: None, or, together with ``storage_bytes_fixed``, the size of its storage as
            ``per_sample * N + fixed`` bytes where that is not its number of elements times their size.
        storage_bytes_fixed: See above.
    """

    name: str
    shape: Shape
    dtype: DType
    role: TensorRole = TensorRole.ACTIVATION
    alias_of: int | None = None
    storage_bytes_per_sample: int | None = None
    storage_bytes_fixed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One operator.

    Args:
        kind: What it computes; see :mod:`dippm.graph.op_kind` for the inputs and attributes of each kind.
        inputs: Indices of the tensors that it reads, in the kind's order. An optional input that is absent is
            left out at the end and is -1 in the middle.
        outputs: Indices of the tensors that it writes.
        attributes: The kind's attributes.
        scope: Path of the module that it belongs to, parts joined by dots, ``""`` where unknown.
        source_op: The framework's own name of the operator, such as ``"aten.convolution"`` or ``"Conv"``.
        releases: Indices of the tensors whose storage is given back right after this node, as the program that
            was read would do it. Only meaningful where ``Graph.has_lifetimes``.
    """

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    scope: str = ""
    source_op: str = ""
    releases: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnGradient:
    """The backward pass that a model defines itself for some of its nodes (``torch.autograd.Function`` in PyTorch).

    Args:
        name: What these nodes have as their attribute ``OWN_GRADIENT``; that of one call.
        outputs: Tensors whose gradients it is given.
        given: A tensor for each of these gradients, which no node writes.
        inputs: Tensors that it gives gradients to.
        results: Each of these gradients, in their order.
        kept: What it keeps of the forward pass until it has run, whether its nodes read it or not.
        held: What it keeps until the whole backward pass has run.
        nodes: Its operators, in execution order; they read what the forward pass has made and ``given``.
    """

    name: str
    outputs: tuple[int, ...]
    given: tuple[int, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    kept: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    nodes: tuple[Node, ...] = ()

    @property
    def tensors(self) -> tuple[int, ...]:
        """All tensors that it names beside those of its nodes."""
        return (*self.outputs, *self.given, *self.inputs, *self.results, *self.kept, *self.held)
