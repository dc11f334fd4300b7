"""Which loops of a compiled model run as one kernel: every loop runs as late as those that read it let it.

A kernel comes after all that it reads, and before what waits for it. Between loops in one kernel nothing waits, so the
kernels are told apart by how many come after each at least, counted from the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

try:
    from dippm.costs import _loops
except ImportError:  # there was no compiler
    _IS_COMPILED = False
else:
    _IS_COMPILED = True

__all__ = ["NOWHERE", "Loops"]

BoolArray = npt.NDArray[np.bool_]

NOWHERE = -1
"""Stands for a node or a kernel where there is none."""

# Loops with as many operators between them stay apart: what they share would be in memory for so long.
_FAR = 64
# Bits of what is known of a node, as in ``_loops.c``.
_IS_VIEW, _IS_LOOP, _IS_BUILT, _IS_WINDOW, _REDUCES = (1 << bit for bit in range(5))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loops:
    """Nodes that run in order, some of them as loops.

    Args:
        reader: Node of each read.
        writer: Node that wrote what is read, ``NOWHERE`` where none did.
        is_view: Nodes that run nothing.
        is_loop: Nodes that are loops.
        is_built: Loops that build their result in memory, from which it is read.
        is_window: Nodes that read each of their inputs many times, and find them in memory.
        reduces: Loops that reduce.
        part: Which nodes are compiled together.
        stretch: Over what each node reduces, equal for equal stretches and at least 0.

    Shapes:
        reader, writer: [E]; the others: [n_nodes].
    """

    reader: IndexArray
    writer: IndexArray
    is_view: BoolArray
    is_loop: BoolArray
    is_built: BoolArray
    is_window: BoolArray
    reduces: BoolArray
    part: IndexArray
    stretch: IndexArray

    def join(self) -> IndexArray:
        """Kernel of each node, the number of its last node; ``NOWHERE`` for views, [n_nodes]."""
        place = np.cumsum(~self.is_view, dtype=np.int64)
        if not _IS_COMPILED:
            return self._join(place.tolist())
        known = (
            (_IS_VIEW, self.is_view),
            (_IS_LOOP, self.is_loop),
            (_IS_BUILT, self.is_built),
            (_IS_WINDOW, self.is_window),
            (_REDUCES, self.reduces),
        )
        flags = sum((bit * is_so for bit, is_so in known), np.zeros(len(place), dtype=np.int64))
        kernel = np.empty_like(place)
        _loops.join(self.reader, self.writer, flags, self.part, self.stretch, place, kernel, _FAR)
        return kernel

    def _join(self, place: list[int]) -> IndexArray:
        """What ``_loops.c`` does, in Python."""
        is_view, is_loop, part = self.is_view.tolist(), self.is_loop.tolist(), self.part.tolist()
        is_built, is_window, reduces = self.is_built.tolist(), self.is_window.tolist(), self.reduces.tolist()
        stretches, count = self.stretch.tolist(), len(place)
        readers: list[list[int]] = [[] for _ in range(count)]
        for node, origin in zip(self.reader.tolist(), self.writer.tolist(), strict=True):
            if origin >= 0 and not is_view[node]:
                readers[origin].append(node)
        # The last node of a kernel is found by following these to the end.
        leader = list(range(count))
        # How many kernels come after a kernel at least, and which stretch it reduces.
        after, reduced = [0] * count, [NOWHERE] * count

        def find(node: int) -> int:
            while leader[node] != node:
                leader[node] = leader[leader[node]]
                node = leader[node]
            return node

        for node in reversed(range(count)):
            is_alone = not is_loop[node] or is_built[node]
            behind = [(find(reader), is_alone or is_window[reader]) for reader in readers[node]]
            for kernel, waits in behind:
                after[node] = max(after[node], after[kernel] + waits)
            if not is_loop[node]:
                continue
            joined = {
                kernel
                for kernel, waits in behind
                if is_loop[kernel]
                and not waits
                and after[kernel] == after[node]
                and part[kernel] == part[node]
                and place[kernel] - place[node] <= _FAR
            }
            if reduces[node]:
                reduced[node] = stretches[node]
                if any(reduced[kernel] not in {NOWHERE, stretches[node]} for kernel in joined):
                    after[node] += 1
                    continue
            for kernel in sorted(joined, reverse=True):
                own = find(node)
                if NOWHERE not in {reduced[own], reduced[kernel]} and reduced[own] != reduced[kernel]:
                    continue
                last, other = max(own, kernel), min(own, kernel)
                leader[other] = last
                reduced[last] = max(reduced[own], reduced[kernel])
        return np.array([NOWHERE if is_view[node] else find(node) for node in range(count)], dtype=np.int64)
