"""One graph's tensors and nodes as columns of numbers, made once, when the graph is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import numpy.typing as npt

from dippm.errors import ModelReadError
from dippm.graph.codes import encode
from dippm.graph.dim import Shape
from dippm.graph.dtype import DType
from dippm.graph.op_kind import OpKind
from dippm.graph.parts import Attribute, Node, TensorRole, TensorSpec

__all__ = ["NONE", "GraphColumns", "IndexLists"]

#: Stands for an index or a number of bytes where there is none.
NONE = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IndexLists:
    """A list of tensors for each node, laid end to end.

    Args:
        lengths: Length of each node's list.
        values: Elements of all lists, node after node.

    Shapes:
        lengths: [n_nodes]; values: [E].
    """

    lengths: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[tuple[int, ...]]) -> IndexLists:
        """Lay lists end to end.

        Raises:
            OverflowError: Where an element needs more than 64 bits.
        """
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        return cls(
            lengths=lengths,
            values=np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum())),
        )

    @classmethod
    def joined(cls, parts: Sequence[IndexLists], before: npt.NDArray[np.int64]) -> IndexLists:
        """The lists of several graphs, whose tensors are numbered through.

        Args:
            parts: The lists of each graph, at least one graph.
            before: What is to be added to the indices of each, ``NONE`` apart.
        """
        values = np.concatenate([part.values for part in parts])
        values[values != NONE] += np.repeat(before, [len(part.values) for part in parts])[values != NONE]
        return cls(lengths=np.concatenate([part.lengths for part in parts]), values=values)

    @property
    def start(self) -> npt.NDArray[np.int64]:
        """Where each list starts, and behind the last one, [n_nodes + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def owner(self) -> npt.NDArray[np.int64]:
        """The node of each element, [E]."""
        return np.repeat(np.arange(len(self.lengths), dtype=np.int64), self.lengths)

    @property
    def position(self) -> npt.NDArray[np.int64]:
        """The place of each element in its list, [E]."""
        starts = np.cumsum(self.lengths) - self.lengths
        result: npt.NDArray[np.int64] = np.arange(len(self.values), dtype=np.int64) - np.repeat(starts, self.lengths)
        return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphColumns:
    """What the tensors and nodes of a graph say, but for names.

    Members of an enum are the numbers that :func:`dippm.graph.codes.encode` gives them.

    Args:
        shapes: The shapes that there are, each once.
        ranks: Number of dimensions of each of those.
        dimensions: All their dimensions, one shape after the other: what each grows by with a sample, and the rest.
        shape: Place of each tensor's shape among them.
        dtype: Element type of each tensor.
        role: Role of each tensor.
        alias_of: Tensor that owns each tensor's storage, ``NONE`` where it owns it itself.
        stated: Of each tensor whose storage has a stated size the index, the bytes per sample, and the constant ones,
            ``NONE`` where they are missing.
        kind: Kind of each node.
        functions: The values of the attribute ``function``, each once.
        function: Place of each node's function among them, ``NONE`` where it has none.
        attributes: The attributes of nodes, equal ones once.
        attribute_keys: What is equal for those of another graph that are equal.
        attribute: Place of each node's attributes among them.
        inputs: Tensors that each node reads, ``NONE`` for an absent one.
        outputs: Tensors that each node writes.
        releases: Tensors whose storage is given back after each node.

    Shapes:
        S shapes. ranks: [S]; dimensions: [sum(ranks), 2]; shape, dtype, role, alias_of: [T]; stated: [n, 3]; kind,
        function, attribute: [n_nodes].
    """

    shapes: tuple[Shape, ...]
    ranks: npt.NDArray[np.int64]
    dimensions: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    dtype: npt.NDArray[np.int64]
    role: npt.NDArray[np.int64]
    alias_of: npt.NDArray[np.int64]
    stated: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    functions: tuple[str, ...]
    function: npt.NDArray[np.int64]
    attributes: tuple[Mapping[str, Attribute], ...]
    attribute_keys: tuple[object, ...]
    attribute: npt.NDArray[np.int64]
    inputs: IndexLists
    outputs: IndexLists
    releases: IndexLists

    @classmethod
    def of(cls, tensors: Sequence[TensorSpec], nodes: Sequence[Node]) -> GraphColumns:
        """Collect the columns.

        Raises:
            ModelReadError: ``graph.invalid`` where an index or a size of storage needs more than 64 bits.
        """
        # Most tensors have the shape of another one.
        places: defaultdict[Shape, int] = defaultdict(count().__next__)
        shape = np.array([places[tensor.shape] for tensor in tensors], dtype=np.int64)
        stated = [
            (index, tensor.storage_bytes_per_sample, _or_none(tensor.storage_bytes_fixed))
            for index, tensor in enumerate(tensors)
            if tensor.storage_bytes_per_sample is not None
        ]
        given = [node.attributes.get("function") for node in nodes]
        known = list(dict.fromkeys(value for value in given if isinstance(value, str)))
        places_of_functions = {value: place for place, value in enumerate(known)}
        attributes, attribute_keys, attribute = _number_attributes([node.attributes for node in nodes])
        try:
            # Number by number: NumPy takes five times as long over a list of pairs.
            numbers = np.array(list(chain.from_iterable(chain.from_iterable(places))), dtype=np.int64)
            return cls(
                shapes=tuple(places),
                ranks=np.fromiter(map(len, places), dtype=np.int64, count=len(places)),
                dimensions=numbers.reshape(-1, 2),
                shape=shape,
                dtype=encode([tensor.dtype for tensor in tensors], DType),
                role=encode([tensor.role for tensor in tensors], TensorRole),
                alias_of=np.array([_or_none(tensor.alias_of) for tensor in tensors], dtype=np.int64),
                stated=np.array(stated, dtype=np.int64).reshape(-1, 3),
                kind=encode([node.kind for node in nodes], OpKind),
                functions=tuple(known),
                function=np.array(
                    [places_of_functions[value] if isinstance(value, str) else NONE for value in given], dtype=np.int64
                ),
                attributes=attributes,
                attribute_keys=attribute_keys,
                attribute=attribute,
                inputs=IndexLists.of([node.inputs for node in nodes]),
                outputs=IndexLists.of([node.outputs for node in nodes]),
                releases=IndexLists.of([node.releases for node in nodes]),
            )
        except OverflowError as exc:
            raise ModelReadError("A number of the graph needs more than 64 bits.", code="graph.invalid") from exc


def _number_attributes(
    given: Sequence[Mapping[str, Attribute]],
) -> tuple[tuple[Mapping[str, Attribute], ...], tuple[object, ...], npt.NDArray[np.int64]]:
    """Attributes that differ, what is equal where they are, and the place of each node's among them."""
    places: dict[object, int] = {}
    try:
        # True and 1 are equal and not alike.
        number = [places.setdefault((*each, *each.values(), *map(type, each.values())), len(places)) for each in given]
    except TypeError:  # a list among the values, which no type allows
        return tuple(given), tuple(object() for _ in given), np.arange(len(given))
    # Of equal ones the last.
    of_number = dict(zip(number, given, strict=True))
    attributes = tuple(of_number[place] for place in range(len(places)))
    return attributes, tuple(places), np.array(number, dtype=np.int64)


def _or_none(number: int | None) -> int:
    """A number as it is given, ``NONE`` where there is none; one below 0 is never taken for that."""
    if number is None:
        return NONE
    return number if number >= 0 else NONE - 1
