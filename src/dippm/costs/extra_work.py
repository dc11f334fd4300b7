"""What some nodes do beside moving bytes: a block for each row or group, windows, copies of images to another order."""

from __future__ import annotations

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["group_norm_blocks", "pool_taps", "reordered_images", "rows_with_blocks"]

_IMAGE_RANK = 4


def rows_with_blocks(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that run a block for each row, as layer norm and its gradient do, and their rows, [n] and [B, n]."""
    sizes, node = plan.work.sizes, at.row.node
    is_norm = sizes.is_kind(OpKind.LAYER_NORM)[node]
    is_norm |= (sizes.is_kind(OpKind.NORM_GRAD) & sizes.has_function(OpKind.LAYER_NORM.value))[node]
    is_norm &= at.row.is_last
    return node[is_norm], at.row.rows[:, is_norm]


def pool_taps(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that pool over windows, and the elements that all windows read, [n] and [B, n]."""
    node = at.pool.node
    has_window = ~plan.work.sizes.is_kind(OpKind.GLOBAL_POOL)[node]
    return node[has_window], (at.pool.out_elements * at.pool.window)[:, has_window]


def group_norm_blocks(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Group norms, whose statistics take a block for each group of a sample: groups, and elements of one.

    Shapes:
        [n], and twice [B, n].
    """
    node = at.row.node
    is_norm = plan.work.sizes.is_kind(OpKind.GROUP_NORM)[node]
    return node[is_norm], at.row.rows[:, is_norm], np.broadcast_to(at.row.width, at.row.rows.shape)[:, is_norm]


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
