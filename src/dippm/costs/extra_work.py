"""What some nodes do beside their kernel: a block for each row, and copies of images to another order."""

from __future__ import annotations

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["reordered_images", "rows_with_blocks"]

_IMAGE_RANK = 4


def rows_with_blocks(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that run a block for each row, as layer norm and its gradient do, and their rows, [n] and [B, n]."""
    sizes, node = plan.work.sizes, at.row.node
    is_norm = sizes.is_kind(OpKind.LAYER_NORM)[node]
    is_norm |= (sizes.is_kind(OpKind.NORM_GRAD) & sizes.has_function(OpKind.LAYER_NORM.value))[node]
    is_norm &= at.row.is_last
    return node[is_norm], at.row.rows[:, is_norm]


def reordered_images(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that first copy their image to another order, and what that moves, bytes, [n] and [B, n].

    A group norm works on NCHW alone, and so does what follows it; a convolution whose weight has its channels last
    brings the image back.
    """
    sizes, formats = plan.work.sizes, plan.formats[Layout.NHWC]
    is_chosen = sizes.is_kind(OpKind.GROUP_NORM) & formats.is_read_last
    is_chosen |= sizes.is_kind(OpKind.CONV) & ~formats.is_read_last & formats.is_last
    node = np.flatnonzero(is_chosen)
    image = sizes.inputs(node, 0)
    # An image of one pixel or of one channel has both orders.
    channels, height, width = (sizes.dimension(image, axis)[:, 0] != 1.0 for axis in (1, -2, -1))
    has_orders = (sizes.rank(image) == _IMAGE_RANK) & channels & (height | width)
    node, image = node[has_orders], image[has_orders]
    element_bytes = plan.work.types.read_bytes[np.searchsorted(sizes.edges.read_node, node)]
    return node, 2.0 * element_bytes * evaluate(sizes.elements_of(image), at.batches)
