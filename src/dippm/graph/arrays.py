"""Struct-of-arrays view of a graph, for costs that are computed over all nodes and batch sizes at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from dippm.graph.dtype import DType
from dippm.graph.graph import Graph, TensorRole

__all__ = ["GraphArrays"]

_RANK_AT_LEAST = 1
# Looked up once: a graph asks for each of its thousands of tensors.
_BITS = {dtype: dtype.bits for dtype in DType}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphArrays:
    """Tensor sizes of one graph as arrays.

    Args:
        per_sample: Growth of each dimension with the batch, padded with 0.
        fixed: Constant part of each dimension, padded with 1.
        rank: Number of dimensions of each tensor.
        bits: Bits per element.
        is_weight: Whether the tensor is a parameter or a buffer.
        storage: Index of the tensor that owns each tensor's storage.
        storage_per_sample: Bytes of the storage per sample where given, else -1.
        storage_fixed: Constant bytes of the storage where given, else -1.

    Shapes:
        T tensors of at most R dimensions. per_sample, fixed: [T, R]; the others: [T].
    """

    per_sample: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int64]
    is_weight: npt.NDArray[np.bool_]
    storage: npt.NDArray[np.int64]
    storage_per_sample: npt.NDArray[np.int64]
    storage_fixed: npt.NDArray[np.int64]

    @classmethod
    def from_graph(cls, graph: Graph) -> GraphArrays:
        """Collect the arrays in one walk over the tensors."""
        tensors = graph.tensors
        count = len(tensors)
        rank = np.fromiter((len(tensor.shape) for tensor in tensors), dtype=np.int64, count=count)
        width = max(int(rank.max(initial=0)), _RANK_AT_LEAST)
        per_sample = np.zeros((count, width), dtype=np.int64)
        fixed = np.ones((count, width), dtype=np.int64)
        # Number by number: NumPy takes five times as long over a list of pairs.
        dims = (dim for tensor in tensors for dim in tensor.shape)
        flat = np.fromiter(chain.from_iterable(dims), dtype=np.int64).reshape(-1, 2)
        is_used = np.arange(width) < rank[:, None]
        per_sample[is_used] = flat[:, 0]
        fixed[is_used] = flat[:, 1]
        weight_roles = (TensorRole.PARAMETER, TensorRole.BUFFER)

        def gather(values: list[int]) -> npt.NDArray[np.int64]:
            return np.array(values, dtype=np.int64)

        return cls(
            per_sample=per_sample,
            fixed=fixed,
            rank=rank,
            bits=gather([_BITS[tensor.dtype] for tensor in tensors]),
            is_weight=np.array([tensor.role in weight_roles for tensor in tensors], dtype=np.bool_),
            storage=gather([i if tensor.alias_of is None else tensor.alias_of for i, tensor in enumerate(tensors)]),
            storage_per_sample=gather(
                [-1 if t.storage_bytes_per_sample is None else t.storage_bytes_per_sample for t in tensors]
            ),
            storage_fixed=gather([-1 if t.storage_bytes_fixed is None else t.storage_bytes_fixed for t in tensors]),
        )

    def sizes(self, batch: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Every dimension at each batch size, padded with 1.

        Shapes:
            batch: [B]; result: [B, T, R].
        """
        batches = np.atleast_1d(np.asarray(batch, dtype=np.int64))
        result: npt.NDArray[np.int64] = self.per_sample * batches[:, None, None] + self.fixed
        return result

    def numel(self, batch: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Number of elements of every tensor at each batch size.

        Shapes:
            batch: [B]; result: [B, T], as floats because a hostile shape can pass 2^63.
        """
        result: npt.NDArray[np.float64] = self.sizes(batch).astype(np.float64).prod(axis=-1)
        return result

    def nbytes(self, batch: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Bytes of the elements of every tensor at each batch size.

        Shapes:
            batch: [B]; result: [B, T].
        """
        result: npt.NDArray[np.float64] = self.numel(batch) * (self.bits / 8.0)
        return result

    def storage_nbytes(self, batch: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Bytes of the storage that every tensor owns at each batch size; 0 for views.

        Shapes:
            batch: [B]; result: [B, T].
        """
        batches = np.atleast_1d(np.asarray(batch, dtype=np.float64))
        stated = self.storage_per_sample * batches[:, None] + self.storage_fixed
        owned = np.where(self.storage_per_sample >= 0, stated, self.nbytes(batch))
        owns = self.storage == np.arange(len(self.storage))
        result: npt.NDArray[np.float64] = np.where(owns, owned, 0.0)
        return result
