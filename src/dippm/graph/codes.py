"""Members of an enum as numbers, so that a rule asks all nodes or tensors of a graph at once.

The number of a member is its place in its enum. A rule that goes by the member alone is a table with a row for each,
made once, and looked up by the numbers of a whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache, lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["encode", "mark", "tabulate"]

_Member = TypeVar("_Member", bound=StrEnum)


def encode(members: Iterable[_Member], enum: type[_Member]) -> npt.NDArray[np.int64]:
    """The number of each member, [n]."""
    return np.array(list(map(_numbers(enum).__getitem__, members)), dtype=np.int64)


def tabulate(enum: type[_Member], value: Callable[[_Member], float]) -> npt.NDArray[np.float64]:
    """A value for each member of an enum, [members]."""
    return np.array([value(member) for member in enum], dtype=np.float64)


def mark(enum: type[_Member], chosen: Iterable[_Member]) -> npt.NDArray[np.bool_]:
    """Which members of an enum are among the chosen ones, [members]; not to be written to."""
    return _mark(enum, frozenset(chosen))


@lru_cache(maxsize=1024)
def _mark(enum: type[_Member], chosen: frozenset[_Member]) -> npt.NDArray[np.bool_]:
    numbers = _numbers(enum)
    result = np.zeros(len(numbers), dtype=np.bool_)
    result[[numbers[member] for member in chosen]] = True
    result.flags.writeable = False
    return result


@cache
def _numbers(enum: type[_Member]) -> dict[_Member, int]:
    return {member: number for number, member in enumerate(enum)}
