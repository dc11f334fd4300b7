"""Times of a trace given to the operators of the graph that was traced."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from dippm.graph import NORM_KINDS, Graph, OpKind
from dippm.measuring.operator_run import OperatorRun

__all__ = ["MatchedOperators", "TracedOperators", "match_operators"]

IndexArray = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_CLASSES = {
    OpKind.CONV: "conv",
    OpKind.CONV_TRANSPOSE: "conv",
    OpKind.LINEAR: "product",
    OpKind.MATMUL: "product",
    OpKind.ATTENTION: "attention",
    OpKind.MAX_POOL: "pool",
    OpKind.AVG_POOL: "pool",
    OpKind.GLOBAL_POOL: "pool",
    OpKind.CAST: "copy",
    OpKind.COPY: "copy",
    **dict.fromkeys(NORM_KINDS, "norm"),
}
# The first that the operator's name holds; what has none of them is an operator of the plainest kind.
_WORDS = {"conv": "conv", "attention": "attention", "norm": "norm", "pool": "pool"}
_PRODUCTS = frozenset({"linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum"})
_COPIES = frozenset({"to", "copy_", "contiguous", "clone", "_to_copy", "reshape", "flatten", "roll"})
_OTHER = "other"
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


def match_operators(graph: Graph, batch: int, runs: Sequence[OperatorRun]) -> list[MatchedOperators]:
    """Find the nodes that the operators of a trace are.

    Both stand in the order in which they run, so that the longest common sequences of kind and size of the first input
    are the same operators; between these, the next of the same kind. Nodes without a counterpart right before a matched
    one ran inside of it.

    Args:
        graph: The graph that ran.
        batch: Its batch.
        runs: Operators of one call.
    """
    order = [position for position, node in enumerate(graph.nodes) if node.kind is not OpKind.VIEW]
    nodes = [(_CLASSES.get(graph.nodes[at].kind, _OTHER), _first_elements(graph, at, batch)) for at in order]
    traced = [(_class_of_run(run), _largest(run)) for run in runs]
    found: dict[int, list[int]] = defaultdict(list)
    for tag, first, stop, run, last_run in SequenceMatcher(None, nodes, traced, autojunk=False).get_opcodes():
        if tag == "equal":
            for own, other in zip(range(first, stop), range(run, last_run), strict=True):
                found[own].append(other)
            continue
        free = first
        for other in range(run, last_run):
            alike = [at for at in range(free, stop) if nodes[at][0] == traced[other][0]]
            if alike:
                found[alike[0]].append(other)
                free = alike[0] + 1
    result = []
    for own, others in found.items():
        inside = own
        while inside > max(0, own - _MOST_INSIDE) and inside - 1 not in found:
            inside -= 1
        result.append(MatchedOperators(nodes=tuple(order[inside : own + 1]), runs=tuple(others)))
    return result


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
