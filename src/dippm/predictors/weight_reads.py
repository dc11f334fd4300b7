"""What the weights of products alone take to come from memory, which no time can be shorter than."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.numbering import is_first, number_values
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.units import BYTES_PER_MIB, GIGA

__all__ = ["WeightReads", "find_weight_reads"]

FloatArray = npt.NDArray[np.float64]

# Share of the data sheet's bandwidth that kernels bound by memory reach on an H100 and an H200. Others' reach less, by
# the tables of single operators: an A100's 82 %, a V100's 88 %, a T4's 75 %; those write as much as a third of it.
_REACHED = 0.9


def find_weight_reads(work: Workload, is_product: npt.NDArray[np.bool_]) -> IndexArray:
    """The reads, among all of the edges, by which products read each weight first, [W].

    Args:
        work: The work of all graphs.
        is_product: Which nodes are products, [n_nodes].
    """
    sizes, edges = work.sizes, work.sizes.edges
    read = np.flatnonzero(sizes.arrays.is_weight[edges.read_tensor] & is_product[edges.read_node])
    result: IndexArray = read[is_first(number_values(sizes.arrays.storage[edges.read_tensor[read]]))]
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightReads:
    """Weights that the products of one or several graphs read, each of them once.

    Args:
        node: The product that reads each weight first.
        bytes: Bytes of each weight that are read, as it is stored.
        graphs: Of each graph its place among the weights.
        count: Number of nodes.

    Shapes:
        node: [W]; bytes: [B, W].
    """

    node: IndexArray
    bytes: FloatArray
    graphs: tuple[slice, ...]
    count: int

    @classmethod
    def of(cls, work: Workload, at: WorkloadAt, read: IndexArray) -> WeightReads:
        """Evaluate them.

        A product that reads less than its weight, as a mixture of experts does, counts with the share that it reads;
        one whose weight is cast first, with what is cast.

        Args:
            work: The work of all graphs.
            at: The same at each batch.
            read: What :func:`find_weight_reads` finds.
        """
        sizes, edges = work.sizes, work.sizes.edges
        tensor, node = edges.read_tensor[read], edges.read_node[read]
        elements = sizes.elements[tensor, 0]
        share = np.minimum(at.bytes_read[:, node] / np.maximum(elements * work.types.read_bytes[read], 1.0), 1.0)
        ends = np.searchsorted(node, [own.stop for own in sizes.nodes_of_graphs]).tolist()
        return cls(
            node=node,
            bytes=share * elements * work.types.tensor_bytes[tensor],
            graphs=tuple(slice(first, stop) for first, stop in zip([0, *ends], ends, strict=False)),
            count=len(sizes.nodes),
        )

    @cached_property
    def bytes_of_graphs(self) -> tuple[FloatArray, ...]:
        """Of each graph the bytes of all its weights, [B] each."""
        return tuple(self.bytes[:, own].sum(axis=1) for own in self.graphs)

    @cached_property
    def bytes_of_nodes(self) -> FloatArray:
        """What each node reads of weights that no node before it has read, bytes, [B, n_nodes]."""
        result = np.zeros((len(self.bytes), self.count))
        np.add.at(result.T, self.node, self.bytes.T)
        return result

    def least_ms(self, device: DeviceSpec) -> FloatArray:
        """What each node takes at least at the data sheet's bandwidth, ms.

        From call to call the cache keeps as much as it holds, and no matter which weights it is, that is the same share
        of all.

        Shapes:
            Result: [B, n_nodes].
        """
        cached = device.l2_mb * BYTES_PER_MIB
        return self._read_ms(device, [np.full_like(total, cached) for total in self.bytes_of_graphs])

    def likely_ms(self, device: DeviceSpec) -> FloatArray:
        """What each node is likely to take at least, ms: at the bandwidth that is reached.

        A cache that is read through in turns keeps less from call to call the more passes it, and nothing of twice what
        it holds.

        Shapes:
            Result: [B, n_nodes].
        """
        holds = device.l2_mb * BYTES_PER_MIB
        kept = [np.clip(2.0 * holds - total, 0.0, holds) for total in self.bytes_of_graphs]
        return self._read_ms(device, kept) / _REACHED

    def _read_ms(self, device: DeviceSpec, cached: Sequence[FloatArray]) -> FloatArray:
        """What reading takes at the data sheet's bandwidth where of each graph so many bytes are cached, [B] each."""
        result = np.zeros((len(self.bytes), self.count))
        for own, total, kept in zip(self.graphs, self.bytes_of_graphs, cached, strict=True):
            share = np.maximum(1.0 - kept / np.maximum(total, 1.0), 0.0)
            if not share.any():
                continue
            least = self.bytes[:, own] * (share[:, None] / (device.bandwidth_gb_s * GIGA) * 1e3)
            np.add.at(result.T, self.node[own], least.T)
        return result
