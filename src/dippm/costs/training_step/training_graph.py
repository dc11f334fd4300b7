"""A whole training step as one graph, made by mirroring a forward graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Optimizer
from dippm.costs.edges import IndexArray
from dippm.costs.precision import Precision
from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.explicit_types import with_explicit_types
from dippm.costs.training_step.forward import append_forward_node
from dippm.costs.training_step.gradient_rules import run_backward
from dippm.costs.training_step.loss import append_loss, start_backward
from dippm.costs.training_step.optimizer import append_update
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.errors import UnsupportedError
from dippm.graph import Graph, Node, OpKind, TensorRole

__all__ = ["Phase", "TrainingGraph", "TrainingSettings", "make_training_graph"]

_EXPLICIT = {Precision.AMP: Precision.FP32, Precision.AMP_BF16: Precision.FP32}


class Phase(IntEnum):
    """Part of a training step that a node belongs to; the loss is part of the forward pass."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """How a model is trained.

    Args:
        optimizer: What updates the weights.
        precision: Arithmetic of the forward and the backward pass.
    """

    optimizer: Optimizer = Optimizer.SGD
    precision: Precision = Precision.FP32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingGraph:
    """A training step.

    Args:
        graph: All nodes of the step in the order in which they run. Number formats are explicit: casts of autocast are
            nodes, and every tensor has the type in which it is stored. Gradients of weights have the role ``GRADIENT``,
            the optimizer's state ``OPTIMIZER_STATE``; every node tells which storages are given back after it.
        phase: Phase of each node, see :class:`Phase`.
        twin: For each node of the backward pass the node of the forward pass whose gradient it computes (several may
            share one: a linear layer has a product for its input and one for its weight); -1 for the others.
        settings: How the model is trained.

    Shapes:
        phase, twin: [n_nodes].
    """

    graph: Graph
    phase: npt.NDArray[np.int8]
    twin: IndexArray
    settings: TrainingSettings

    @property
    def precision(self) -> Precision:
        """The precision at which the graph is to be costed: casts that are nodes are not to be added again."""
        return _EXPLICIT.get(self.settings.precision, self.settings.precision)


def make_training_graph(graph: Graph, settings: TrainingSettings) -> TrainingGraph:
    """Mirror a forward graph into a training step, in time linear in the graph.

    Args:
        graph: The forward pass, of any frontend.
        settings: How the model is trained.

    Raises:
        UnsupportedError: ``training.nothing_to_train`` where the model has no parameters, ``training.no_loss`` where
            no output depends on one.
    """
    parameters = [
        index
        for index, tensor in enumerate(graph.tensors)
        if tensor.role is TensorRole.PARAMETER and tensor.alias_of is None and tensor.dtype.is_floating
    ]
    if not parameters:
        raise UnsupportedError(
            f"'{graph.source}' has no weights to train.",
            code="training.nothing_to_train",
            cure="Give a model whose weights are parameters, or predict its inference.",
        )
    explicit, kept_casts = with_explicit_types(graph, settings.precision)
    builder = StepBuilder(explicit)
    free_after: dict[int, int] = {}
    seen: list[tuple[int, Node]] = []
    for node in explicit.nodes:
        builder.scope = node.scope
        mirrored = append_forward_node(builder, node)
        seen.append((len(builder.nodes) - 1, mirrored))
        for index in node.releases:
            free_after[builder.base(index)] = len(builder.nodes) - 1

    gradients = Gradients(builder, [node for _, node in seen])
    builder.scope = "loss"
    first = len(builder.nodes)
    loss = append_loss(builder, explicit.outputs, gradients)
    seen += [(first + place, node) for place, node in enumerate(loss)]
    gradients.add_wanted(loss)
    end = len(builder.nodes) - 1
    for index in (*explicit.outputs, *kept_casts):
        free_after[builder.base(index)] = end

    builder.phase = Phase.BACKWARD
    start_backward(builder, gradients)
    for position, node in reversed(seen):
        builder.twin, builder.scope = position, node.scope
        run_backward(gradients, node)
    builder.twin, builder.scope = -1, "optimizer"
    trained = [index for index in parameters if gradients.of_parameter(index) is not None]
    kept = [_keep_gradient(builder, gradients, index) for index in trained]
    builder.phase = Phase.OPTIMIZER
    append_update(builder, settings.optimizer, trained, kept)

    nodes = _with_releases(builder, free_after, has_lifetimes=explicit.has_lifetimes)
    joint = replace(
        explicit,
        tensors=tuple(builder.tensors),
        nodes=nodes,
        outputs=(),
        has_lifetimes=True,
    )
    return TrainingGraph(
        graph=joint,
        phase=np.array(builder.phases, dtype=np.int8),
        twin=np.array(builder.twins, dtype=np.int64),
        settings=settings,
    )


def _keep_gradient(builder: StepBuilder, gradients: Gradients, parameter: int) -> int:
    """The gradient of a parameter in memory of its own, which the parameter keeps until the step ends."""
    gradient = gradients.of_parameter(parameter)
    if gradient is None:  # only parameters with a gradient come here
        return -1
    base = builder.base(gradient)
    owner = builder.tensors[base]
    if owner.role is TensorRole.ACTIVATION and builder.is_whole(gradient) and not gradients.is_shared(gradient):
        builder.tensors[base] = replace(owner, role=TensorRole.GRADIENT)
        return gradient
    tensor = builder.tensors[parameter]
    own = builder.new_tensor(tensor.shape, tensor.dtype, name=f"{tensor.name}.grad", role=TensorRole.GRADIENT)
    builder.run(OpKind.COPY, (gradient,), (own,), function="clone")
    return own


def _with_releases(builder: StepBuilder, free_after: dict[int, int], *, has_lifetimes: bool) -> tuple[Node, ...]:
    """Each node with the storages that are given back after it.

    A storage lives until the last node that uses it or one of its views; where the program that was read keeps it
    longer, until then. Gradients of parameters live until the last node.
    """
    last: dict[int, int] = dict(free_after)
    for position, node in enumerate(builder.nodes):
        for index in _used(node):
            base = builder.base(index)
            if last.get(base, -1) < position:
                last[base] = position
    forward = len(builder.graph.tensors)
    releases: list[list[int]] = [[] for _ in builder.nodes]
    for base, position in last.items():
        role = builder.tensors[base].role
        if role is TensorRole.ACTIVATION:
            # What the program never gave back stays.
            if not has_lifetimes or base >= forward or base in free_after:
                releases[position].append(base)
        elif role is TensorRole.GRADIENT:
            releases[-1].append(base)
    return tuple(replace(node, releases=tuple(bases)) for node, bases in zip(builder.nodes, releases, strict=True))


def _used(node: Node) -> Iterable[int]:
    for group in (node.inputs, node.outputs):
        for index in group:
            if index >= 0:
                yield index
