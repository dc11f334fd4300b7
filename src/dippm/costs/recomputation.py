"""What a compiled backward pass makes again of the forward pass, and what is kept for it.

Of what loops of the forward pass have made, the backward pass's own loops can make again what they read, from what is
kept anyway or is less to keep; what takes a reduction, reads windows or joins tensors is kept, and so is what library
calls of the backward pass read. PyTorch finds the least to keep by a minimum cut; here each value is decided by itself,
in the order in which they are made.

What is written only to be kept counts twice, as there.

Rules after ``torch/_functorch/partitioners.py``, PyTorch 2.0 and 2.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind

__all__ = ["Recomputation", "Value"]

BoolArray = npt.NDArray[np.bool_]
#: What a node has written, as the number of the node and of the tensor that owns the storage.
Value = tuple[int, int]

_NOWHERE = -1
# What lies further apart is kept: its parts would be in memory for so long.
_FAR = 64
# How much more a byte counts that is written only to be kept: what loops make and none but loops read.
_UNWRITTEN = 2.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recomputation:
    """What loops of the backward pass read where they make values again.

    Args:
        source: The read in whose place each read stands, its own number for most; -1 where nothing is read.
        kept: Further values that are read for it, with the node that reads them and the bytes of an element.

    Shapes:
        source: [E].
    """

    source: IndexArray
    kept: tuple[tuple[Value, int, float], ...]

    @classmethod
    def of(
        cls,
        sizes: GraphSizes,
        *,
        part: IndexArray,
        is_loop: BoolArray,
        is_cheap: BoolArray,
        writer: IndexArray,
        owner: IndexArray,
        element_bytes: FloatArray,
        reach: int | None,
    ) -> Recomputation:
        """Decide about every value that passes from a forward to a backward pass.

        Args:
            sizes: The graphs.
            part: 0 for nodes of the forward pass.
            is_loop: Which nodes are loops.
            is_cheap: Which loops may be made again.
            writer: The node that last wrote what each read reads, -1 where none did.
            owner: The tensor whose storage each read reads.
            element_bytes: Bytes for each element of each read.
            reach: How many operators before the backward pass a value is made again at most; None for any number.

        Shapes:
            part, is_loop, is_cheap: [n_nodes]; writer, owner, element_bytes: [E].
        """
        edges = sizes.edges
        is_view = sizes.is_kind(OpKind.VIEW)[edges.read_node]
        is_forward = part == 0
        is_crossing = ~is_view & (writer >= 0) & ~is_forward[edges.read_node]
        is_crossing &= is_forward[np.maximum(writer, 0)]
        may_be = is_crossing & is_loop[edges.read_node] & is_cheap[np.maximum(writer, 0)]
        chains = _Chains(
            sizes,
            written=_values(writer, owner, np.flatnonzero(~is_view & ~(is_loop[edges.read_node] & is_loop[writer]))),
            is_cheap=is_cheap & is_forward & _is_near(edges.read_node, writer, is_view, is_forward, reach),
            writer=writer,
            owner=owner,
            element_bytes=element_bytes,
            kept=_values(writer, owner, np.flatnonzero(is_crossing & ~may_be)),
        )
        source, kept = np.arange(len(writer)), []
        for edge in np.flatnonzero(may_be)[np.argsort(writer[may_be], kind="stable")].tolist():
            instead = chains.decide(edge)
            if instead is None:
                continue
            source[edge], others = instead
            reader = int(edges.read_node[edge])
            kept += [(value, reader, width) for value, width in others]
        return cls(source=source, kept=tuple(kept))


def _values(writer: IndexArray, owner: IndexArray, chosen: IndexArray) -> set[Value]:
    return set(zip(writer[chosen].tolist(), owner[chosen].tolist(), strict=True))


def _is_near(
    reader: IndexArray, writer: IndexArray, is_view: BoolArray, is_forward: BoolArray, reach: int | None
) -> BoolArray:
    """Which nodes are that few operators away from the backward pass, [n_nodes]."""
    if reach is None:
        return np.ones(len(is_forward), dtype=np.bool_)
    away = np.where(is_forward, len(is_forward), 0).tolist()
    chosen = np.flatnonzero(~is_view & (writer >= 0))[::-1]
    for node, origin in zip(reader[chosen].tolist(), writer[chosen].tolist(), strict=True):
        away[origin] = min(away[origin], away[node] + 1)
    result: BoolArray = np.array(away) <= reach
    return result


class _Chains:
    """Follows values back to what is in memory; what is decided for one holds for those that follow."""

    def __init__(
        self,
        sizes: GraphSizes,
        *,
        written: set[Value],
        is_cheap: BoolArray,
        writer: IndexArray,
        owner: IndexArray,
        element_bytes: FloatArray,
        kept: set[Value],
    ) -> None:
        nodes = len(is_cheap)
        self._is_cheap, self._kept, self._written = is_cheap.tolist(), kept, written
        self._writer, self._owner = writer.tolist(), owner.tolist()
        self._width: list[float] = element_bytes.tolist()
        self._elements: list[float] = sizes.elements.sum(axis=1).tolist()
        self._first: list[int] = np.searchsorted(sizes.edges.read_node, np.arange(nodes + 1)).tolist()
        self._place: list[int] = np.cumsum(~sizes.is_kind(OpKind.VIEW)).tolist()
        self._is_dropout = sizes.is_kind(OpKind.DROPOUT).tolist()
        self._made = sizes.arrays.storage[sizes.outputs(np.arange(nodes))].tolist()
        self._again: dict[Value, tuple[int, dict[Value, int]]] = {}

    def decide(self, edge: int) -> tuple[int, list[tuple[Value, float]]] | None:
        """The read that stands for making the value again, and what else that reads; None where it is kept."""
        value = self._writer[edge], self._owner[edge]
        if value in self._kept:
            return None
        if value not in self._again:
            reads = self._follow(value)
            new = {leaf: read for leaf, read in reads.items() if leaf[0] != _NOWHERE and leaf not in self._kept}
            if not self._is_cheap[value[0]] or self._cost(new) >= self._cost({value: edge}) > 0:
                self._kept.add(value)
                return None
            self._kept |= new.keys()
            main = max(reads.values(), key=lambda read: self._elements[self._owner[read]], default=_NOWHERE)
            self._again[value] = main, reads
        main, reads = self._again[value]
        others = [(leaf, self._width[read]) for leaf, read in reads.items() if read != main and leaf[0] != _NOWHERE]
        return main, others

    def _cost(self, reads: Mapping[Value, int]) -> float:
        """Bytes of values to keep; of what is written for that alone they count more."""
        return sum(
            ((1.0 if value in self._written else _UNWRITTEN) * self._bytes([read]) for value, read in reads.items()),
            0.0,
        )

    def _bytes(self, reads: Iterable[int]) -> float:
        return sum((self._elements[self._owner[read]] * self._width[read] for read in reads), 0.0)

    def _follow(self, value: Value) -> dict[Value, int]:
        """What is read to make a value again, with the read of each."""
        reads: dict[Value, int] = {}
        seen, open_values = {value}, [value]
        while open_values:
            node, storage = open_values.pop()
            # Random numbers are drawn again.
            if self._is_dropout[node] and storage != self._made[node]:
                continue
            for read in range(self._first[node], self._first[node + 1]):
                leaf = self._writer[read], self._owner[read]
                origin = leaf[0]
                is_made = origin != _NOWHERE and leaf not in self._kept and self._is_cheap[origin]
                if not is_made or self._place[value[0]] - self._place[origin] > _FAR:
                    reads.setdefault(leaf, read)
                elif leaf not in seen:
                    seen.add(leaf)
                    open_values.append(leaf)
        return reads
