"""Struct-of-arrays view of graphs, for costs that are computed over all nodes and batch sizes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np
import numpy.typing as npt

from dippm.graph.codes import mark
from dippm.graph.columns import NONE
from dippm.graph.dtype import DType
from dippm.graph.graph import Attribute, Graph, TensorRole

__all__ = ["GraphArrays"]

_RANK_AT_LEAST = 1
# Floats below this add up to whole numbers.
_EXACT_BELOW = 2.0**53
_BITS = np.array([dtype.bits for dtype in DType], dtype=np.int64)
_DTYPES = tuple(DType)
_IS_PARAMETER = mark(TensorRole, (TensorRole.PARAMETER,))
_IS_WEIGHT = mark(TensorRole, (TensorRole.PARAMETER, TensorRole.BUFFER))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphArrays:
    """Kinds of the nodes and sizes of the tensors of one or several graphs as arrays.

    Nodes and tensors of several graphs are numbered through, graph after graph.

    Args:
        node_start: First node of each graph, and behind the last one.
        tensor_start: First tensor of each graph, and behind the last one.
        kind: Kind of each node, as its place in :class:`~dippm.graph.op_kind.OpKind`.
        functions: The functions that nodes compute, each once.
        function: Place of each node's function among them, -1 where it has none.
        attributes: The attributes of nodes, equal ones once.
        attribute: Place of each node's attributes among them.
        shape: Number of each tensor's shape, equal for equal ones of a graph, in the order in which they first appear;
            behind the last tensor one more, without dimensions.
        per_sample: Growth of each dimension of each shape with the batch, padded with 0.
        fixed: Constant part of each dimension, padded with 1.
        dimensions: Of each dimension the constant part and its growth, as floats; behind the last shape one more, and
            behind the last dimension of each at least one more, which are 1.
        rank: Number of dimensions of each tensor.
        dtype: Element type of each tensor, as its place in :class:`~dippm.graph.dtype.DType`.
        role: What each tensor is to the model, as its place in :class:`~dippm.graph.graph.TensorRole`.
        bits: Bits per element.
        is_weight: Whether the tensor is a parameter or a buffer.
        storage: Index of the tensor that owns each tensor's storage.
        storage_per_sample: Bytes of the storage per sample where given, else -1.
        storage_fixed: Constant bytes of the storage where given, else -1.

    Shapes:
        G graphs, T tensors of S shapes of at most R dimensions. node_start, tensor_start: [G + 1]; kind, function,
        attribute: [n_nodes]; shape: [T + 1]; per_sample, fixed: [S, R]; dimensions: [S + 1, R + 1, 2]; the others: [T].
    """

    node_start: npt.NDArray[np.int64]
    tensor_start: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    functions: tuple[str, ...]
    function: npt.NDArray[np.int64]
    attributes: tuple[Mapping[str, Attribute], ...]
    attribute: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    per_sample: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.int64]
    dimensions: npt.NDArray[np.float64]
    rank: npt.NDArray[np.int64]
    dtype: npt.NDArray[np.int64]
    role: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int64]
    is_weight: npt.NDArray[np.bool_]
    storage: npt.NDArray[np.int64]
    storage_per_sample: npt.NDArray[np.int64]
    storage_fixed: npt.NDArray[np.int64]

    @classmethod
    def from_graphs(cls, graphs: Sequence[Graph]) -> GraphArrays:
        """Join the graphs' columns."""
        columns = [graph.columns for graph in graphs]
        node_start = np.cumsum([0, *(len(graph.nodes) for graph in graphs)])
        tensor_start = np.cumsum([0, *(len(graph.tensors) for graph in graphs)])
        before = np.repeat(tensor_start[:-1], np.diff(tensor_start))
        rank = _join([each.ranks for each in columns])
        shapes = np.cumsum([0, *(len(each.ranks) for each in columns)])
        shape = _join([first + each.shape for first, each in zip(shapes.tolist(), columns, strict=False)])
        width = max(int(rank.max(initial=0)), _RANK_AT_LEAST)
        per_sample = np.zeros((len(rank), width), dtype=np.int64)
        fixed = np.ones((len(rank), width), dtype=np.int64)
        flat = np.concatenate([each.dimensions for each in columns] or [np.zeros((0, 2), dtype=np.int64)])
        is_used = np.arange(width) < rank[:, None]
        per_sample[is_used] = flat[:, 0]
        fixed[is_used] = flat[:, 1]

        dimensions = np.zeros((len(rank) + 1, width + 1, 2))
        dimensions[..., 0] = 1.0
        dimensions[:-1, :-1, 0] = fixed
        dimensions[:-1, :-1, 1] = per_sample
        functions = tuple(dict.fromkeys(chain.from_iterable(each.functions for each in columns)))
        place_of = {function: place for place, function in enumerate(functions)}
        # Behind the last one what NONE, which is -1, stands for.
        function = [
            np.array([*(place_of[name] for name in each.functions), NONE], dtype=np.int64)[each.function]
            for each in columns
        ]
        # Graphs share attributes, and what they say is read from each once.
        attributes: dict[object, Mapping[str, Attribute]] = {}
        for each in columns:
            attributes.update(zip(each.attribute_keys, each.attributes, strict=True))
        place_of_key = {key: place for place, key in enumerate(attributes)}
        attribute = [
            np.array([place_of_key[key] for key in each.attribute_keys], dtype=np.int64)[each.attribute]
            for each in columns
        ]
        dtype, role, alias_of = (
            _join([getattr(each, name) for each in columns]) for name in ("dtype", "role", "alias_of")
        )
        storage_bytes = np.full((len(shape), 2), NONE, dtype=np.int64)
        for first, each in zip(tensor_start.tolist(), columns, strict=False):
            storage_bytes[first + each.stated[:, 0]] = each.stated[:, 1:]
        return cls(
            node_start=node_start,
            tensor_start=tensor_start,
            kind=_join([each.kind for each in columns]),
            functions=functions,
            function=_join(function),
            attributes=tuple(attributes.values()),
            attribute=_join(attribute),
            shape=np.append(shape, len(rank)),
            per_sample=per_sample,
            fixed=fixed,
            dimensions=dimensions,
            rank=rank[shape],
            dtype=dtype,
            role=role,
            bits=_BITS[dtype],
            is_weight=_IS_WEIGHT[role],
            storage=np.where(alias_of == NONE, np.arange(len(shape)), alias_of + before),
            storage_per_sample=storage_bytes[:, 0],
            storage_fixed=storage_bytes[:, 1],
        )

    @classmethod
    def from_graph(cls, graph: Graph) -> GraphArrays:
        """Collect the arrays of one graph."""
        return cls.from_graphs([graph])

    def parameters(self) -> list[dict[DType, int]]:
        """Number of trained weights of each graph by their type, in the order in which the types first appear.

        Each storage counts once.
        """
        return self._numbers_of(_IS_PARAMETER)

    def kept(self) -> list[dict[DType, int]]:
        """The same of all that is kept with a model: trained weights, frozen ones and buffers."""
        return self._numbers_of(_IS_WEIGHT)

    def _numbers_of(self, is_counted: npt.NDArray[np.bool_]) -> list[dict[DType, int]]:
        chosen = np.flatnonzero(is_counted[self.role] & (self.storage == np.arange(len(self.storage))))
        graphs = len(self.tensor_start) - 1
        graph = np.repeat(np.arange(graphs), np.diff(np.searchsorted(chosen, self.tensor_start)))
        # Of each type in each graph the place of the first tensor, and the number of elements of all.
        of_type = graph * len(_DTYPES) + self.dtype[chosen]
        first = np.full(graphs * len(_DTYPES), len(chosen))
        first[of_type[::-1]] = np.arange(len(chosen))[::-1]
        numbers = self._numel_of_groups(of_type, chosen, groups=len(first))
        result: list[dict[DType, int]] = [{} for _ in range(graphs)]
        for each in np.argsort(first)[: np.count_nonzero(first < len(chosen))].tolist():
            place, number = divmod(each, len(_DTYPES))
            result[place][_DTYPES[number]] = numbers[each]
        return result

    def _numel_of_groups(
        self, group: npt.NDArray[np.int64], tensors: npt.NDArray[np.int64], *, groups: int
    ) -> list[int]:
        """Elements of all tensors of each group at batch 0, as whole numbers that are exact whatever their size."""
        shape = self.shape[tensors]
        with np.errstate(over="ignore", invalid="ignore"):
            numel = self.fixed.astype(np.float64).prod(axis=1)
            is_small = np.abs(numel[shape]).sum() < _EXACT_BELOW
        if is_small:
            return list(map(int, np.bincount(group, numel[shape], minlength=groups).tolist()))
        exact, result = list(map(prod, self.fixed.tolist())), [0] * groups
        for place, number in zip(group.tolist(), shape.tolist(), strict=True):
            result[place] += exact[number]
        return result


def _join(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Columns of several graphs, one after the other."""
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
