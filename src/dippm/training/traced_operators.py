"""Times of a trace given to the operators of the graph that was traced."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt

from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.graph import NORM_KINDS, Graph, OpKind
from dippm.measuring.operator_run import OperatorRun

__all__ = ["MatchedOperators", "TracedOperators", "match_operators"]

IndexArray = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_CLASSES = {
    OpKind.CONV: "conv",
    OpKind.CONV_TRANSPOSE: "conv",
    OpKind.CONV_WEIGHT_GRAD: "conv",
    OpKind.LINEAR: "product",
    OpKind.MATMUL: "product",
    OpKind.ATTENTION: "attention",
    OpKind.ATTENTION_GRAD: "attention",
    OpKind.MAX_POOL: "pool",
    OpKind.AVG_POOL: "pool",
    OpKind.GLOBAL_POOL: "pool",
    OpKind.POOL_GRAD: "pool",
    OpKind.CAST: "copy",
    OpKind.COPY: "copy",
    OpKind.NORM_GRAD: "norm",
    **dict.fromkeys(NORM_KINDS, "norm"),
}
# The first that the operator's name holds; what has none of them is an operator of the plainest kind.
_WORDS = {"conv": "conv", "attention": "attention", "norm": "norm", "pool": "pool"}
_PRODUCTS = frozenset({"linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum"})
_COPIES = frozenset({"to", "copy_", "contiguous", "clone", "_to_copy", "reshape", "flatten", "roll"})
_OTHER = "other"
_CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE})
# What PyTorch runs inside of another operator, such as copies before a product, stands right before it in the graph.
_MOST_INSIDE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedOperators:
    """Nodes of a graph whose kernels one operator of a trace launched.

    Args:
        nodes: The nodes.
        runs: Positions of the operators in the trace; mostly one.
    """

    nodes: tuple[int, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TracedOperators:
    """Measured times of operators of samples, by groups that a trace does not tell apart.

    Args:
        operator: Class of each member of each group, counted within its sample.
        group: Its group, counted within its sample.
        member_offsets: Where the members of each sample begin, and the end.
        log_ms: Logarithm of each group's time, ms.
        share: Its share of its sample's time, all operators like it together.
        group_offsets: Where the groups of each sample begin, and the end.

    Shapes:
        operator, group: [M]; member_offsets, group_offsets: [S + 1]; log_ms, share: [G].
    """

    operator: IndexArray
    group: IndexArray
    member_offsets: IndexArray
    log_ms: Float32Array
    share: Float32Array
    group_offsets: IndexArray


def match_operators(graph: Graph | TrainingGraph, batch: int, runs: Sequence[OperatorRun]) -> list[MatchedOperators]:
    """Find the nodes that the operators of a trace are.

    Both stand in the order in which they run, so that the longest common sequences of kind and size of the first input
    are the same operators; between these, the next of the same kind. Nodes without a counterpart right before a matched
    one ran inside of it. Of a training step the ways forward and back are matched apart; the optimizer's
    update, whose operators take lists of tensors, is one group; autograd runs branches in an order of its own.

    Args:
        graph: The graph that ran.
        batch: Its batch.
        runs: Operators of one call or step.
    """
    if not isinstance(graph, TrainingGraph):
        every = range(len(graph.nodes))
        return _align(graph, batch, [(position,) for position in every], runs, range(len(runs)))
    backward = [position for position, run in enumerate(runs) if run.is_backward]
    first, stop = (backward[0], backward[-1] + 1) if backward else (len(runs), len(runs))
    forward, back, update = (np.flatnonzero(graph.phase == phase).tolist() for phase in Phase)
    matched = _align(graph.graph, batch, [(position,) for position in forward], runs, range(first))
    matched += _align(graph.graph, batch, _run_together(graph, back), runs, range(first, stop), is_branching=True)
    if update and stop < len(runs):
        matched.append(MatchedOperators(nodes=tuple(update), runs=tuple(range(stop, len(runs)))))
    return matched


def _align(
    graph: Graph,
    batch: int,
    units: Sequence[tuple[int, ...]],
    runs: Sequence[OperatorRun],
    places: range,
    *,
    is_branching: bool = False,
) -> list[MatchedOperators]:
    """Match units of nodes, each of which one operator runs, with the operators at some places of a trace.

    Branches may run in another order than the graph has them.
    """
    units = [unit for unit in units if graph.nodes[unit[0]].kind is not OpKind.VIEW]
    nodes = [(_CLASSES.get(graph.nodes[at].kind, _OTHER), _first_elements(graph, at, batch)) for at, *_ in units]
    traced = [(_class_of_run(runs[place]), _largest(runs[place])) for place in places]
    found: dict[int, list[int]] = defaultdict(list)
    gaps = []
    for tag, first, stop, run, last_run in SequenceMatcher(None, nodes, traced, autojunk=False).get_opcodes():
        if tag == "equal":
            for own, other in zip(range(first, stop), range(run, last_run), strict=True):
                found[own].append(other)
        else:
            gaps.append((range(first, stop), range(run, last_run)))
    if is_branching:
        _pair_the_rest(found, nodes, traced)
    paired = set(chain.from_iterable(found.values()))
    for own_gap, traced_gap in gaps:
        free = [own for own in own_gap if own not in found]
        for other in traced_gap:
            alike = [own for own in free if nodes[own][0] == traced[other][0]]
            if alike and other not in paired:
                found[alike[0]].append(other)
                free = [own for own in free if own > alike[0]]
    result = []
    for own, others in found.items():
        inside = own
        while inside > max(0, own - _MOST_INSIDE) and inside - 1 not in found:
            inside -= 1
        together = tuple(chain.from_iterable(units[inside : own + 1]))
        result.append(MatchedOperators(nodes=together, runs=tuple(places[other] for other in others)))
    return result


def _pair_the_rest(
    found: dict[int, list[int]], nodes: Sequence[tuple[str, int]], traced: Sequence[tuple[str, int]]
) -> None:
    """Pair what is alike wherever it stands."""
    taken = set(chain.from_iterable(found.values()))
    free: dict[tuple[str, int], list[int]] = defaultdict(list)
    for own in reversed([own for own in range(len(nodes)) if own not in found]):
        free[nodes[own]].append(own)
    for other, key in enumerate(traced):
        if other not in taken and free[key]:
            found[free[key].pop()].append(other)


def _run_together(step: TrainingGraph, positions: Sequence[int]) -> list[tuple[int, ...]]:
    """Nodes of the way back, those together that PyTorch runs in one operator: all gradients of a convolution."""

    def operator(position: int) -> tuple[bool, int]:
        twin = int(step.twin[position])
        is_of_convolution = twin >= 0 and step.graph.nodes[twin].kind in _CONVOLUTIONS
        return is_of_convolution, twin if is_of_convolution else position

    run = [position for position in positions if step.graph.nodes[position].kind is not OpKind.VIEW]
    return [tuple(own) for _, own in groupby(run, operator)]


def _first_elements(graph: Graph, position: int, batch: int) -> int:
    inputs = graph.nodes[position].inputs
    if not inputs or inputs[0] < 0:
        return 0
    return math.prod(dim.at(batch) for dim in graph.tensors[inputs[0]].shape)


def _largest(run: OperatorRun) -> int:
    first = run.input_shapes[0] if run.input_shapes else ()
    return math.prod(first) if first else 0


def _class_of_run(run: OperatorRun) -> str:
    name = run.name.rpartition("::")[2]
    if name in _PRODUCTS:
        return "product"
    if name in _COPIES:
        return "copy"
    return next((kind for word, kind in _WORDS.items() if word in name), _OTHER)
