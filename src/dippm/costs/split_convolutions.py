"""Convolutions of several groups that cuDNN runs by kernels of their own for each group, in 16 bits.

It does where groups are wide, or read another number of channels than they write: so it did with nine in ten of 266
convolutions by themselves on an H200 whose groups have 48 channels or more, and with one in eight of 627 others
(``data/labels/h200/layers.parquet``); with depthwise ones of several outputs for each channel where channels lie side
by side.

It launches the groups on several streams. In an eager call that helps nobody, since the host takes longer to launch a
kernel than the device to run it. In a captured graph, which keeps the streams as branches, groups run side by side: on
an H100 and an H200 the two such convolutions of a PiT, of 144 and 288 groups, take a fifth of what their kernels take
one after the other, those of a RegNet with 3, 8 and 17 half, those of a Visformer with 4 two thirds. What is said of
it here meets 50 captured calls within 6.1 % in the mean, half of them within 3; the sum of their kernels is 12.5 % off.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.depthwise import is_depthwise
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic
from dippm.costs.workload import WorkloadAt

__all__ = ["side_by_side", "split_depthwise"]

BoolArray = npt.NDArray[np.bool_]

# Channels of a group from which on it has kernels of its own, and those where it has where it reads another number of
# channels than it writes.
_WIDE, _NARROW = 48.0, 16.0
# So many groups take half as long side by side as one after the other.
_GROUPS = 12.0


def split_depthwise(plan: KernelPlan, at: WorkloadAt, *, layout: Layout) -> BoolArray:
    """Which convolutions are depthwise ones with several outputs for each channel that have a kernel for each, [n].

    Args:
        plan: The kernels.
        at: Their work.
        layout: Layout of the images.
    """
    sizes = at.convolution
    is_split = _may_be_split(plan, at) & plan.formats[layout].is_last[sizes.node]
    if is_split.any():
        is_split &= is_depthwise(sizes, is_gradient=plan.is_backward[sizes.node])
        is_split &= sizes.in_channels[0] != sizes.out_channels[0]
    return is_split


def side_by_side(plan: KernelPlan, at: WorkloadAt, *, layout: Layout, most: float) -> tuple[IndexArray, FloatArray]:
    """Convolutions whose groups have kernels of their own, and by what captured graphs run these faster, [n] each.

    Args:
        plan: The kernels.
        at: Their work.
        layout: Layout of the images.
        most: How many times faster they run at most.
    """
    sizes, is_split = at.convolution, _may_be_split(plan, at)
    if is_split.any():
        read, written = (channels[0] / sizes.groups for channels in (sizes.in_channels, sizes.out_channels))
        is_wide = (read >= _WIDE) | ((read >= _NARROW) & (read != written))
        is_split &= (is_wide & (sizes.kernel_depth == 1.0)) | split_depthwise(plan, at, layout=layout)
    return sizes.node[is_split], np.minimum(1.0 + sizes.groups[is_split] / _GROUPS, most)


def _may_be_split(plan: KernelPlan, at: WorkloadAt) -> BoolArray:
    """Which convolutions have several groups, go forward and compute in 16 bits."""
    sizes = at.convolution
    result: BoolArray = (sizes.groups > 1.0) & ~plan.is_backward[sizes.node] & ~sizes.is_transposed
    if result.any():
        result &= plan.work.types.is_computed_in(Arithmetic.FP16, Arithmetic.BF16)[sizes.node]
    return result
