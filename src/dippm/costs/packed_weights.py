"""What multiplying with weights in few bits, and unpacking them, takes of device and host; see ``packings.py``.

The rate at which a streaming multiprocessor unpacks is settled on published tokens of Llama-3.1-70B in 4 bits on an
H100: a step of 8 rows takes 152 ms longer than one of a single row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.packings import number_of_packing, read_packings
from dippm.costs.polynomial import evaluate
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec
from dippm.graph import OpKind
from dippm.units import GIGA

__all__ = ["PackedWeights"]

FloatArray = npt.NDArray[np.float64]

# Weights a second that a streaming multiprocessor unpacks, and the share of the bandwidth that unpacking reaches.
_UNPACKED_PER_SM = 3.3 * GIGA
_BANDWIDTH_SHARE = 0.85
_WHOLE_BYTES = 2.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedWeights:
    """Nodes that multiply with packed weights or unpack them, of one or several graphs.

    Args:
        node: The nodes.
        weights: Weights that each unpacks, 0 where it reads them as they are stored.
        stored_bytes: Bytes of one weight.
        is_product: Whether a node is a product, and not a kernel that unpacks alone.
        host_us: What the host spends on each beside an ordinary layer's launch, microseconds.
        count: Number of all nodes.

    Shapes:
        node, stored_bytes, is_product: [P]; weights, host_us: [B, P].
    """

    node: IndexArray
    weights: FloatArray
    stored_bytes: FloatArray
    is_product: npt.NDArray[np.bool_]
    host_us: FloatArray
    count: int

    @classmethod
    def of(cls, plan: KernelPlan, at: WorkloadAt) -> PackedWeights | None:
        """Find them; None where there are none."""
        work, sizes = plan.work, plan.work.sizes
        column = np.flatnonzero(work.gemm.is_packed)
        column = column[sizes.read_attributes(work.gemm.table.node[column], number_of_packing) >= 0.0]
        unpacking = np.flatnonzero(sizes.is_kind(OpKind.DEQUANTIZE))
        unpacking = unpacking[sizes.read_attributes(unpacking, number_of_packing) >= 0.0]
        node = np.concatenate([work.gemm.table.node[column], unpacking])
        if not len(node):
            return None
        most_rows, host_us, unpacking_us = read_packings(sizes.read_attributes(node, number_of_packing))
        elements = evaluate(sizes.elements_of(sizes.outputs(unpacking)), at.batches)
        gemm = at.gemm
        of_products = gemm.b[:, column] * gemm.n[:, column] * gemm.k[:, column]
        # What is unpacked by a node of its own is read by an ordinary product.
        rows = np.concatenate([gemm.m[:, column], np.full_like(elements, np.inf)], axis=1)
        is_unpacked = (rows > most_rows) | (np.arange(len(node)) >= len(column))
        right = sizes.inputs(node, 1)
        right[len(column) :] = sizes.inputs(unpacking, 0)
        return cls(
            node=node,
            weights=np.where(is_unpacked, np.concatenate([of_products, elements], axis=1), 0.0),
            stored_bytes=sizes.arrays.bits[right] / 8.0,
            is_product=np.arange(len(node)) < len(column),
            host_us=np.where(is_unpacked, unpacking_us, host_us),
            count=len(sizes.nodes),
        )

    def more_host_us(self) -> FloatArray:
        """What the host spends on each node of all beside its usual launch, microseconds, [B, n_nodes]."""
        result = np.zeros((len(self.host_us), self.count))
        result[:, self.node] = self.host_us
        return result

    def slowed_ms(self, busy_ms: FloatArray, device: DeviceSpec) -> FloatArray:
        """The time for which all nodes keep the device busy, unpacking included.

        Args:
            busy_ms: The same where every product reads its weight as it is stored, and kernels that unpack take what
                they move.
            device: The device.

        Shapes:
            busy_ms and result: [B, n_nodes].
        """
        bandwidth = device.bandwidth_gb_s * GIGA * _BANDWIDTH_SHARE
        unpacked_s = self.weights / (_UNPACKED_PER_SM * device.sm_count)
        moved_s = self.weights * (self.stored_bytes + _WHOLE_BYTES) / bandwidth
        read_s = self.weights * _WHOLE_BYTES / bandwidth
        result = busy_ms.copy()
        found = result[:, self.node]
        product = np.maximum(found, 1e3 * read_s) + 1e3 * np.maximum(unpacked_s, moved_s)
        result[:, self.node] = np.where(self.is_product, product, np.maximum(found, 1e3 * unpacked_s))
        return result
