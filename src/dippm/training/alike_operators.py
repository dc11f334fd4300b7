"""Operators that a graph network cannot tell apart.

After k rounds of messages two operators have the same embedding where their features are the same, those of what they
read, and so on k operators back: blocks of a stage repeat, and so do stages in the models of a family. Such operators
make a class, found by the colour refinement of Weisfeiler and Leman (1968), and a class is one row of a batch. Results
and gradients are those of the whole graphs, to float32's rounding; only dropout is drawn for a class and not for each
of its operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AlikeOperators", "ClassRound", "find_alike"]

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassRound:
    """Classes after a round of messages, by the classes before it.

    Args:
        own: The class before that the operators of each class were in.
        producer_offsets: Where the producers of each class begin, and the end.
        producers: Classes before of what an operator of the class reads, one for each edge.
        degrees: How many edges end in an operator of each class before.

    Shapes:
        own: [C_after]; producer_offsets: [C_after + 1]; degrees: [C_before].
    """

    own: IndexArray
    producer_offsets: IndexArray
    producers: IndexArray
    degrees: IndexArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AlikeOperators:
    """Operators by what a network can tell of them.

    Args:
        first: An operator of each class before any message.
        rounds: Classes after each round.
        classes: Class of every operator after the last round.

    Shapes:
        first: [C]; classes: [N].
    """

    first: IndexArray
    rounds: tuple[ClassRound, ...]
    classes: IndexArray


def find_alike(features: npt.NDArray[Any], edge_index: IndexArray, *, rounds: int) -> AlikeOperators:
    """Find the classes of operators.

    Args:
        features: Features of all operators of all graphs, none of them NaN.
        edge_index: Producer and consumer of each edge, counted over all graphs.
        rounds: Rounds of messages.

    Shapes:
        features: [N, F]; edge_index: [2, E].
    """
    source, target = edge_index
    degrees = np.bincount(target, minlength=len(features))
    edges = np.r_[0, np.cumsum(degrees)]
    codes = (np.unique(column, return_inverse=True)[1] for column in features.T)
    classes = _number(degrees, codes)
    first = _first_of_each(classes)
    found = []
    representatives = first
    for _ in range(rounds):
        heard = classes[source]
        heard = heard[np.lexsort((heard, target))]
        after = _refine(classes, heard, edges)
        before, representatives = representatives, _first_of_each(after)
        start, count = edges[representatives], degrees[representatives]
        offsets = np.r_[0, np.cumsum(count)]
        found.append(
            ClassRound(
                own=classes[representatives],
                producer_offsets=offsets,
                producers=heard[np.repeat(start - offsets[:-1], count) + np.arange(offsets[-1])],
                degrees=degrees[before],
            )
        )
        classes = after
    return AlikeOperators(first=first, rounds=tuple(found), classes=classes)


def _refine(classes: IndexArray, heard: IndexArray, edges: IndexArray) -> IndexArray:
    """Split classes by the sorted classes that their operators hear; operators of one class hear equally many."""
    degrees = np.diff(edges)
    result = classes.copy()
    for rank in range(int(degrees.max(initial=0))):
        hearing = np.flatnonzero(degrees > rank)
        split = _number(result[hearing], [heard[edges[hearing] + rank]])
        result[hearing] = split + result.max() + 1
    return _number(result, [])


def _number(classes: IndexArray, codes: Iterable[IndexArray]) -> IndexArray:
    """Number the combinations that occur of a class and of codes, from 0 on."""
    key, size = classes, int(classes.max(initial=0)) + 1
    for code in codes:
        count = int(code.max(initial=0)) + 1
        if size * count >= 2**63:
            key = np.unique(key, return_inverse=True)[1]
            size = int(key.max()) + 1
        key, size = key * count + code, size * count
    numbered: IndexArray = np.unique(key, return_inverse=True)[1]
    return numbered


def _first_of_each(classes: IndexArray) -> IndexArray:
    first: IndexArray = np.unique(classes, return_index=True)[1]
    return first
