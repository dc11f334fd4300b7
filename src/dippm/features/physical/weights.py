"""What operators read of weights."""

from __future__ import annotations

import numpy as np

from dippm.costs.polynomial import FloatArray
from dippm.costs.workload import Workload

__all__ = ["weight_bytes"]


def weight_bytes(work: Workload) -> FloatArray:
    """Bytes of weights that each node reads, [n_nodes]."""
    sizes = work.sizes
    edges = sizes.edges
    is_weight = sizes.arrays.is_weight[edges.read_tensor]
    held = sizes.elements[edges.read_tensor, 0] * work.types.read_bytes
    total = np.bincount(edges.read_node[is_weight], held[is_weight], minlength=len(sizes.nodes))
    return np.asarray(total, dtype=np.float64)
