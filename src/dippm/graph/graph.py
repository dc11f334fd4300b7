"""The framework-free computation graph that every frontend fills and every cost rule reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from dippm.errors import ModelReadError
from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.op_kind import OpKind

__all__ = ["MOST_DIMENSIONS", "Attribute", "Graph", "Node", "TensorRole", "TensorSpec"]

Attribute = bool | int | float | str | tuple[int, ...]

#: Most dimensions of a tensor: what NumPy and PyTorch's iterators take.
MOST_DIMENSIONS = 64


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
class Graph:
    """A model as operators over tensors, with the batch size left open.

    Nodes stand in an order in which they can run. Sizes are linear in the batch size N, so that one graph serves
    every batch, unless ``fixed_batch`` says that it holds for one batch size alone.

    Args:
        source: Where it came from: a path or a name such as ``"timm:resnet50"``.
        framework: ``"onnx"``, ``"pytorch"``, ...
        tensors: All tensors; nodes refer to them by index.
        nodes: All operators, in execution order.
        inputs: Indices of the model's inputs, in the model's order.
        outputs: Indices of the model's outputs.
        has_lifetimes: True where ``Node.releases`` tells when each storage is given back; else a storage is
            given back after the last node that reads it or one of its views.
        fixed_batch: The one batch size for which the sizes hold, or None for every batch size.
        fixed_batch_reason: Why the batch is fixed, for the message to the user.
        smallest_batch: The smallest batch size for which the sizes hold.
        is_scored_in_fp32: Whether the model's own loss takes its scores in FP32, whatever type they have, as those of
            transformers' decoders do.
        unsupported_ops: Operators without a cost rule of their own: framework's name to number of nodes.
        warnings: What the reader could not represent, in words for the user.

    Raises:
        ModelReadError: ``graph.invalid`` where a node refers to a tensor that does not exist, or reads one before
            it is written (a cycle), or a tensor has more than ``MOST_DIMENSIONS``.
    """

    source: str
    framework: str
    tensors: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    has_lifetimes: bool = False
    fixed_batch: int | None = None
    fixed_batch_reason: str = ""
    smallest_batch: int = 1
    is_scored_in_fp32: bool = False
    unsupported_ops: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.tensors)
        is_ready = [tensor.role is not TensorRole.ACTIVATION for tensor in self.tensors]
        for position, node in enumerate(self.nodes):
            for index in node.inputs:
                if index == -1:
                    continue
                if not 0 <= index < count:
                    raise ModelReadError(
                        f"Node {position} ({node.source_op or node.kind}) reads tensor {index}; there are {count}.",
                        code="graph.invalid",
                    )
                if not is_ready[index]:
                    raise ModelReadError(
                        f"Node {position} ({node.source_op or node.kind}) reads '{self.tensors[index].name}' before "
                        "any node writes it: the graph has a cycle or a missing operator.",
                        code="graph.invalid",
                    )
            for index in node.outputs:
                if not 0 <= index < count:
                    raise ModelReadError(
                        f"Node {position} ({node.source_op or node.kind}) writes tensor {index}; there are {count}.",
                        code="graph.invalid",
                    )
                is_ready[index] = True
        for index in (*self.inputs, *self.outputs):
            if not 0 <= index < count:
                raise ModelReadError(f"The graph lists tensor {index}; there are {count}.", code="graph.invalid")
        for index, tensor in enumerate(self.tensors):
            if len(tensor.shape) > MOST_DIMENSIONS:
                raise ModelReadError(
                    f"Tensor '{tensor.name[:100]}' has {len(tensor.shape)} dimensions; {MOST_DIMENSIONS} is the most.",
                    code="graph.invalid",
                )
            base = tensor.alias_of
            if base is not None and (not 0 <= base < index or self.tensors[base].alias_of is not None):
                raise ModelReadError(f"Tensor '{tensor.name}' shares storage with tensor {base}.", code="graph.invalid")

    def holds_for(self, batch: int) -> bool:
        """Whether the sizes hold at a batch size."""
        return self.fixed_batch == batch if self.fixed_batch is not None else batch >= self.smallest_batch

    @property
    def parameter_count(self) -> int:
        """Number of trained weights, each storage counted once."""
        total = 0
        for tensor in self.tensors:
            if tensor.role is TensorRole.PARAMETER and tensor.alias_of is None:
                total += prod(fixed for _, fixed in tensor.shape)
        return total

    def producers(self) -> list[int]:
        """For each tensor the index of the node that writes it, -1 for inputs and weights."""
        result = [-1] * len(self.tensors)
        for position, node in enumerate(self.nodes):
            for index in node.outputs:
                result[index] = position
        return result

    def edges(self) -> list[tuple[int, int, int]]:
        """Data edges as (producing node, consuming node, tensor), one per use, in consumer order."""
        producer = self.producers()
        return [
            (producer[index], position, index)
            for position, node in enumerate(self.nodes)
            for index in node.inputs
            if index >= 0 and producer[index] >= 0
        ]
