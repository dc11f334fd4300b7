"""A whole training step as one graph, made by mirroring a forward graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import LowRankAdapters, Optimizer
from dippm.costs.edges import IndexArray
from dippm.costs.precision import Precision
from dippm.costs.training_step.adapters import find_adapted_weights, with_adapters, with_frozen_weights
from dippm.costs.training_step.attention_kernels import with_attention_as_run
from dippm.costs.training_step.backward import ACCUMULATE, RESHAPE, Gradients
from dippm.costs.training_step.checkpointing import find_blocks, find_functions, run_block_backward
from dippm.costs.training_step.explicit_types import with_explicit_types
from dippm.costs.training_step.forward import append_forward_node
from dippm.costs.training_step.loss import append_loss, start_backward
from dippm.costs.training_step.optimizer import append_update
from dippm.costs.training_step.own_gradients import (
    run_backward_of,
    with_own_gradients_apart,
    with_own_gradients_behind,
)
from dippm.costs.training_step.sparse_gradients import find_sparse_tables, refuse_sparse
from dippm.costs.training_step.step_builder import StepBuilder, change_node, change_tensor
from dippm.errors import UnsupportedError
from dippm.graph import Graph, Node, OpKind, TensorRole
from dippm.graph.codes import encode, mark
from dippm.graph.linear_layers import is_quantised

__all__ = ["Phase", "TrainingGraph", "TrainingSettings", "make_training_graph"]

_ALONE = frozenset({ACCUMULATE, RESHAPE})
_ACCUMULATE_SCOPE = "accumulate"
_EXPLICIT = dict.fromkeys((Precision.AMP, Precision.AMP_BF16, Precision.FP16, Precision.BF16), Precision.FP32)


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
        accumulation: Forward and backward passes whose gradients are added up before one update, 1 or more.
        is_checkpointed: Whether blocks drop their activations and compute them again in the backward pass.
        keeps_gradients: Whether the gradients of the weights stay in memory after the step, to be set to zero.
        adapters: The adapters that alone are trained; None where all weights are.
    """

    optimizer: Optimizer = Optimizer.SGD
    precision: Precision = Precision.FP32
    accumulation: int = 1
    is_checkpointed: bool = False
    keeps_gradients: bool = False
    adapters: LowRankAdapters | None = None

    @property
    def costed_precision(self) -> Precision:
        """The precision at which the graph is to be costed: casts that are nodes are not to be added again."""
        return _EXPLICIT.get(self.precision, self.precision)


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
        trained: The parameters that get a gradient.
        untrained: Those that would take one and get none: they lead to no output that the loss is taken of.

    Shapes:
        phase, twin: [n_nodes].
    """

    graph: Graph
    phase: npt.NDArray[np.int8]
    twin: IndexArray
    settings: TrainingSettings
    trained: tuple[int, ...] = ()
    untrained: tuple[int, ...] = ()

    @property
    def precision(self) -> Precision:
        """The precision at which the graph is to be costed, see :attr:`TrainingSettings.costed_precision`."""
        return self.settings.costed_precision

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """How often each node runs in a step, [n_nodes]: those of forward and backward once for each accumulation."""
        passes = float(self.settings.accumulation)
        times = np.where(self.phase != Phase.OPTIMIZER, passes, 1.0)
        # The first pass hands its gradients over: nothing is filled, and a sum less is taken.
        times[self.accumulates] = passes - 1.0
        for position, node in enumerate(self.graph.nodes) if passes > 1 else ():
            if node.scope == _ACCUMULATE_SCOPE:
                times[position] = 0.0
        return times

    @property
    def accumulates(self) -> npt.NDArray[np.bool_]:
        """Which nodes add a gradient to that of earlier passes, [n_nodes]."""
        result = np.zeros(len(self.phase), dtype=np.bool_)
        for position, node in enumerate(self.graph.nodes) if self.settings.accumulation > 1 else ():
            result[position] = node.source_op == ACCUMULATE and self._is_kept(node.outputs[0])
        return result

    def _is_kept(self, tensor: int) -> bool:
        tensors = self.graph.tensors
        base = tensors[tensor].alias_of
        return base is not None and tensors[base].role is TensorRole.GRADIENT


def make_training_graph(graph: Graph, settings: TrainingSettings) -> TrainingGraph:
    """Mirror a forward graph into a training step, in time linear in the graph.

    Args:
        graph: The forward pass, of any frontend.
        settings: How the model is trained.

    Raises:
        UnsupportedError: ``training.nothing_to_train`` where the model has no parameters, ``training.no_loss`` where
            no output depends on one, ``training.no_blocks`` where blocks to checkpoint are not named,
            ``lora.no_layers`` where no linear layer gets an adapter, ``training.quantised`` where weights are quantised
            and no adapters are trained,
            ``optimizer.complex`` where weights are complex and the optimizer takes real ones alone,
            ``optimizer.sparse`` where tables have sparse gradients and it takes none.
    """
    explicit, kept_casts = _with_adapters_and_types(graph, settings)
    parameters = [
        index
        for index, tensor in enumerate(explicit.tensors)
        if tensor.role is TensorRole.PARAMETER and tensor.alias_of is None and tensor.dtype.is_differentiable
    ]
    if not parameters:
        raise UnsupportedError(
            f"'{graph.source}' has no weights to train.",
            code="training.nothing_to_train",
            cure="Give a model whose weights are parameters, or predict its inference.",
        )
    refuse_sparse(explicit, settings.optimizer, parameters)
    explicit = with_attention_as_run(explicit)
    blocks = find_blocks(explicit) if settings.is_checkpointed else find_functions(explicit)
    dropped = {position for block in blocks for position in block}
    builder = StepBuilder(explicit)
    earlier: dict[int, int] = {}
    if settings.accumulation > 1:
        # Only what a single pass reaches has a gradient to add to.
        single = make_training_graph(graph, replace(settings, accumulation=1))
        earlier = _gradients_of_earlier_passes(builder, single.trained)
    free_after: dict[int, int] = {}
    seen: list[tuple[int, Node]] = []
    for position, node in enumerate(explicit.nodes):
        builder.scope = node.scope
        mirrored = append_forward_node(builder, node, is_kept=position not in dropped)
        seen.append((len(builder.nodes) - 1, mirrored))
        for index in node.releases:
            free_after[builder.base(index)] = len(builder.nodes) - 1

    sparse = find_sparse_tables(explicit, settings.optimizer, accumulation=settings.accumulation)
    own = {gradient.name: gradient for gradient in explicit.own_gradients}
    gradients = Gradients(builder, [node for _, node in seen], sparse_tables=sparse, own=own)
    builder.scope = "loss"
    first = len(builder.nodes)
    loss = append_loss(builder, explicit.outputs, gradients, is_autocast=settings.precision.is_autocast)
    seen += [(first + place, node) for place, node in enumerate(loss)]
    gradients.add_wanted(loss)
    end = len(builder.nodes) - 1
    for index in (*explicit.outputs, *kept_casts):
        free_after[builder.base(index)] = end

    for parameter, gradient in earlier.items():
        gradients.put(parameter, gradient)
    builder.phase = Phase.BACKWARD
    start_backward(builder, gradients)
    _append_backward(builder, gradients, seen, blocks)
    end = len(builder.nodes) - 1
    free_after.update(gradients.free_after)
    free_after.update((builder.base(index), end) for index in gradients.held)
    free_after.update(_logarithms_until(builder, dropped={seen[position][0] for position in dropped}))
    builder.twin, builder.scope = -1, "optimizer"
    trained = [index for index in parameters if gradients.of_parameter(index) is not None]
    kept = [_keep_gradient(builder, gradients, index, earlier.get(index)) for index in trained]
    builder.phase = Phase.OPTIMIZER
    append_update(builder, settings.optimizer, trained, kept, rows=gradients.rows)

    kept_by_program = len(graph.tensors) if graph.has_lifetimes else 0
    nodes = _with_releases(
        builder, free_after, kept_by_program=kept_by_program, keeps_gradients=settings.keeps_gradients
    )
    joint = replace(
        explicit,
        tensors=tuple(builder.tensors),
        nodes=nodes,
        outputs=(),
        own_gradients=(),
        has_lifetimes=True,
    )
    return TrainingGraph(
        graph=joint,
        phase=np.array(builder.phases, dtype=np.int8),
        twin=np.array(builder.twins, dtype=np.int64),
        trained=tuple(trained),
        untrained=tuple(index for index in parameters if gradients.of_parameter(index) is None),
        settings=settings,
    )


def _with_adapters_and_types(graph: Graph, settings: TrainingSettings) -> tuple[Graph, frozenset[int]]:
    """The forward pass with its adapters and explicit types, and the copies of weights that autocast keeps."""
    if settings.adapters is None:
        _refuse_quantised(graph)
        return _with_types(graph, settings.precision)
    weights = find_adapted_weights(graph, settings.adapters)
    # A backward pass of the model's own knows nothing of an adapter inside.
    own = tuple(each for each in graph.own_gradients if weights.isdisjoint((*each.inputs, *each.kept)))
    explicit, kept = _with_types(with_frozen_weights(replace(graph, own_gradients=own)), settings.precision)
    adapted, kept_of_adapters = with_adapters(explicit, settings.adapters, weights)
    return adapted, kept | kept_of_adapters


def _with_types(graph: Graph, precision: Precision) -> tuple[Graph, frozenset[int]]:
    """A graph with explicit types, in the model's own backward passes too."""
    explicit, kept = with_explicit_types(with_own_gradients_behind(graph), precision)
    return with_own_gradients_apart(explicit), kept


def _refuse_quantised(graph: Graph) -> None:
    """Refuse to train weights of products that are stored in few bits."""
    for tensor in graph.tensors:
        if tensor.role is TensorRole.PARAMETER and is_quantised(tensor):
            raise UnsupportedError(
                f"The weights of '{graph.source}' are quantised ('{tensor.name}' is {tensor.dtype.value}): nothing can "
                "train them.",
                code="training.quantised",
                cure="Train adapters beside them, by lora or --lora, leave out how weights are to be stored, or train "
                'what a checkpoint was quantised from, by weights="dequantised" or --weights dequantised.',
            )


def _logarithms_until(builder: StepBuilder, *, dropped: Collection[int]) -> dict[int, int]:
    """The logarithms that losses pick from, which autograd keeps for their shape alone, and until when it does.

    Of losses that are computed again, whose nodes are ``dropped``, nothing is kept until then.
    """
    picked = {
        position: builder.base(node.inputs[0])
        for position, node in enumerate(builder.nodes)
        if node.kind is OpKind.GATHER and node.attributes.get("function") == "nll_loss" and position not in dropped
    }
    return {
        picked[builder.twins[position]]: position
        for position, node in enumerate(builder.nodes)
        if node.attributes.get("function") == "nll_loss" and builder.twins[position] in picked
    }


def _append_backward(
    builder: StepBuilder, gradients: Gradients, seen: Sequence[tuple[int, Node]], blocks: Sequence[range]
) -> None:
    """The backward pass, the last node first; a block that was dropped is computed again when its turn comes."""
    stop = len(seen)
    for block in (*reversed(blocks), range(0)):
        run_backward_of(gradients, seen[block.stop : stop])
        if block:
            run_block_backward(builder, gradients, seen[block.start : block.stop])
        stop = block.start


def _gradients_of_earlier_passes(builder: StepBuilder, parameters: Sequence[int]) -> dict[int, int]:
    """Gradients that are there before the forward pass begins; writing them stands for the first pass's sums."""
    gradients = {
        index: builder.new_tensor(
            builder.shape(index), builder.dtype(index), name="accumulated", role=TensorRole.GRADIENT
        )
        for index in parameters
    }
    builder.scope = _ACCUMULATE_SCOPE
    builder.run(OpKind.FILL, (), tuple(gradients.values()), function="zeros")
    return gradients


def _keep_gradient(builder: StepBuilder, gradients: Gradients, parameter: int, earlier: int | None) -> int:
    """The gradient of a parameter in memory of its own, which the parameter keeps until the step ends."""
    gradient = gradients.of_parameter(parameter)
    if gradient is None:  # only parameters with a gradient come here
        return -1
    if earlier is not None:
        return earlier
    base = builder.base(gradient)
    owner = builder.tensors[base]
    if owner.role is TensorRole.ACTIVATION and builder.is_whole(gradient) and not gradients.is_shared(gradient):
        builder.tensors[base] = change_tensor(owner, role=TensorRole.GRADIENT)
        return gradient
    name = f"{builder.tensors[parameter].name}.grad"
    own = builder.new_tensor(builder.shape(gradient), builder.dtype(gradient), name=name, role=TensorRole.GRADIENT)
    builder.run(OpKind.COPY, (gradient,), (own,), function="clone")
    return own


def _with_releases(
    builder: StepBuilder, free_after: dict[int, int], *, kept_by_program: int, keeps_gradients: bool
) -> tuple[Node, ...]:
    """Each node with the storages that are given back after it.

    A storage lives until the last node that uses it or one of its views; where the program that was read keeps it
    longer, until then. An operator's backward pass holds all that it is given until its last node, and a chain of
    operators its own results until the last of them. Gradients of parameters live until the last node of all,
    or for good.
    """
    nodes, tensors = builder.nodes, builder.tensors
    count = len(tensors)
    storage = np.array([i if t.alias_of is None else t.alias_of for i, t in enumerate(tensors)], dtype=np.int64)
    used = [(*node.inputs, *node.outputs) for node in nodes]
    position = np.repeat(np.arange(len(nodes)), [len(indices) for indices in used])
    base = np.fromiter(chain.from_iterable(used), dtype=np.int64, count=len(position))
    position, base = position[base >= 0], storage[base[base >= 0]]

    start, stop = _operator_spans(builder)
    chain_end = np.arange(len(nodes))
    chain_end[list(builder.chain_ends)] = list(builder.chain_ends.values())
    first_use = np.full(count, len(base))
    np.minimum.at(first_use, base, np.arange(len(base)))
    is_given = position[first_use[base]] < start[position]
    held_by_program = np.array(list(free_after), dtype=np.int64)
    after = np.full(count, -1)
    after[held_by_program] = list(free_after.values())
    np.maximum.at(after, base, np.where(is_given, stop[position] - 1, chain_end[position]))

    role = encode([tensor.role for tensor in tensors], TensorRole)
    is_gradient = mark(TensorRole, [TensorRole.GRADIENT])[role] & (not keeps_gradients)
    after[is_gradient & (after >= 0)] = len(nodes) - 1
    # What the program that was read never gave back stays.
    is_freed = np.arange(count) >= kept_by_program
    is_freed[held_by_program] = True
    is_freed &= mark(TensorRole, [TensorRole.ACTIVATION])[role]
    freed = np.flatnonzero((is_freed | is_gradient) & (after >= 0))
    # Those that the program holds first, in its order, then the others in the order in which they are first used.
    turn = len(held_by_program) + first_use
    turn[held_by_program] = np.arange(len(held_by_program))
    freed = freed[np.lexsort((turn[freed], after[freed]))]
    bounds = np.searchsorted(after[freed], np.arange(len(nodes) + 1)).tolist()
    bases = freed.tolist()
    return tuple(
        node if not node.releases and first == end else change_node(node, releases=tuple(bases[first:end]))
        for node, (first, end) in zip(nodes, pairwise(bounds), strict=True)
    )


def _operator_spans(builder: StepBuilder) -> tuple[IndexArray, IndexArray]:
    """For each node the first of the nodes of the same backward operator, and behind the last.

    Sums of gradients come after it, and copies for a view before it, each by itself.
    """
    twin = np.array(builder.twins, dtype=np.int64)
    is_alone = np.array([node.source_op in _ALONE for node in builder.nodes], dtype=np.bool_)
    run = np.cumsum(np.diff(twin, prepend=-1) != 0)
    own = np.flatnonzero((twin >= 0) & ~is_alone)
    start = np.arange(len(twin))
    stop = start + 1
    # Of several values for one place the last one stays.
    first, last = np.zeros((2, len(twin) + 1), dtype=np.int64)
    first[run[own[::-1]]] = own[::-1]
    last[run[own]] = own
    start[own], stop[own] = first[run[own]], last[run[own]] + 1
    return start, stop
