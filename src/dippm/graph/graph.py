"""The framework-free computation graph that every frontend fills and every cost rule reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from dippm.errors import ModelReadError
from dippm.graph.codes import mark
from dippm.graph.columns import NONE, GraphColumns
from dippm.graph.parts import (
    MOST_DIMENSIONS,
    MOST_RUNS,
    OWN_GRADIENT,
    Attribute,
    Node,
    OwnGradient,
    TensorRole,
    TensorSpec,
)

__all__ = [
    "MOST_DIMENSIONS",
    "MOST_RUNS",
    "OWN_GRADIENT",
    "Attribute",
    "Graph",
    "Node",
    "OwnGradient",
    "TensorRole",
    "TensorSpec",
]

_IS_COMPUTED = mark(TensorRole, (TensorRole.ACTIVATION,))


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
        proved_batch: The largest batch size that the model was read at, of a graph that is for every batch size;
            None where nobody noted it.
        other_batches: Batch sizes at which the model goes another way than this graph, or does not run.
        known_batches: The batch sizes alone at which the model is known to go this graph's way, where it may go another
            one at more than can be listed; empty where there is no such thing.
        keeps_fp32_parts: Whether the model's code computes parts in FP32 also where its weights are of 16 bits, as that
            of transformers and diffusers does: only a reading in that format shows them.
        is_scored_in_fp32: Whether the model's own loss takes its scores in FP32, whatever type they have, as those of
            transformers' decoders do.
        own_gradients: The backward passes that the model defines itself, of one that was read as it trains.
        unsupported_ops: Operators without a cost rule of their own: framework's name to number of nodes.
        warnings: What the reader could not represent, in words for the user.
        columns: The same tensors and nodes as arrays; made here.

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
    proved_batch: int | None = None
    other_batches: tuple[int, ...] = ()
    known_batches: tuple[int, ...] = ()
    keeps_fp32_parts: bool = False
    is_scored_in_fp32: bool = False
    own_gradients: tuple[OwnGradient, ...] = ()
    unsupported_ops: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    columns: GraphColumns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", GraphColumns.of(self.tensors, self.nodes))
        self._check_indices()
        self._check_order()
        self._check_tensors()

    def holds_for(self, batch: int) -> bool:
        """Whether the sizes hold at a batch size."""
        return self.fixed_batch == batch if self.fixed_batch is not None else batch >= self.smallest_batch

    def is_proved_for(self, batch: int) -> bool:
        """Whether the sizes hold at a batch size that is not beyond those that the model was read at."""
        is_beyond = self.fixed_batch is None and self.proved_batch is not None and batch > self.proved_batch
        return self.holds_for(batch) and not is_beyond

    def goes_so_at(self, batch: int) -> bool:
        """Whether nothing is known against the model's going this graph's way at a batch size."""
        return batch not in self.other_batches and (not self.known_batches or batch in self.known_batches)

    def serves(self, batch: int) -> bool:
        """Whether the sizes hold at a batch size, and the model goes this graph's way there."""
        return self.holds_for(batch) and self.goes_so_at(batch)

    @property
    def has_batch(self) -> bool:
        """Whether the size of any input depends on the batch."""
        return any(dim.per_sample for index in self.inputs for dim in self.tensors[index].shape)

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

    def _check_indices(self) -> None:
        count = len(self.tensors)
        for verb, lists, least in (("reads", self.columns.inputs, NONE), ("writes", self.columns.outputs, 0)):
            beyond = np.flatnonzero((lists.values < least) | (lists.values >= count))
            if len(beyond):
                node, index = int(lists.owner[beyond[0]]), int(lists.values[beyond[0]])
                raise ModelReadError(
                    f"{self._describe(node)} {verb} tensor {index}; there are {count}.", code="graph.invalid"
                )
        for index in (*self.inputs, *self.outputs):
            if not 0 <= index < count:
                raise ModelReadError(f"The graph lists tensor {index}; there are {count}.", code="graph.invalid")
        for gradient in self.own_gradients:
            named = [index for node in gradient.nodes for index in (*node.outputs, *node.releases)]
            read = [index for node in gradient.nodes for index in node.inputs if index != NONE]
            is_paired = len(gradient.outputs) == len(gradient.given) and len(gradient.inputs) == len(gradient.results)
            if not is_paired or not all(0 <= index < count for index in (*gradient.tensors, *named, *read)):
                raise ModelReadError(
                    f"The gradient of '{gradient.name}' names a tensor that does not exist, of {count}, or is not "
                    "one for each of its tensors.",
                    code="graph.invalid",
                )
        given = [index for gradient in self.own_gradients for index in gradient.given]
        is_given = all(gradient.given for gradient in self.own_gradients)
        names = {gradient.name for gradient in self.own_gradients}
        if not is_given or len(names) < len(self.own_gradients) or len(set(given)) < len(given):
            raise ModelReadError(
                "Two gradients of the model's own have one name or are given one tensor, or one is given none.",
                code="graph.invalid",
            )

    def _check_order(self) -> None:
        """Every node stands behind those that write what it reads."""
        read, written = self.columns.inputs, self.columns.outputs
        writer = np.full(len(self.tensors) + 1, len(self.nodes), dtype=np.int64)
        # The first of several writers is assigned last. Behind the last tensor stands the absent one.
        writer[written.values[::-1]] = written.owner[::-1]
        writer[:-1][~_IS_COMPUTED[self.columns.role]] = -1
        writer[NONE] = -1
        early = np.flatnonzero(writer[read.values] >= read.owner)
        if len(early):
            node, tensor = int(read.owner[early[0]]), self.tensors[read.values[early[0]]]
            raise ModelReadError(
                f"{self._describe(node)} reads '{tensor.name}' before any node writes it: the graph has a cycle or a "
                "missing operator.",
                code="graph.invalid",
            )

    def _check_tensors(self) -> None:
        if max(map(len, self.columns.shapes), default=0) > MOST_DIMENSIONS:
            tensor = next(tensor for tensor in self.tensors if len(tensor.shape) > MOST_DIMENSIONS)
            raise ModelReadError(
                f"Tensor '{tensor.name[:100]}' has {len(tensor.shape)} dimensions; {MOST_DIMENSIONS} is the most.",
                code="graph.invalid",
            )
        base = self.columns.alias_of
        alias = np.flatnonzero(base != NONE)
        is_own = np.append(base == NONE, False)
        # Below NONE lies what is not an index at all.
        wrong = alias[(base[alias] < 0) | (base[alias] >= alias) | ~is_own[np.minimum(base[alias], len(base))]]
        if len(wrong):
            tensor = self.tensors[wrong[0]]
            raise ModelReadError(
                f"Tensor '{tensor.name}' shares storage with tensor {tensor.alias_of}.", code="graph.invalid"
            )

    def _describe(self, position: int) -> str:
        node = self.nodes[position]
        return f"Node {position} ({node.source_op or node.kind})"
