"""Convolutions of several groups that cuDNN runs by kernels of their own for each group, in 16 bits.

It does from 16 channels a group on, with up to six groups; with more of them where groups read another number of
channels than they write, or have 48 to 82, and above that in calls of up to three samples, where otherwise one kernel
runs all of them. What is said of it here holds for 94 % of 786 convolutions by themselves on an H200
(``data/labels/h200/layer-traces.parquet``, off which it was read), and for 91 to 96 % of those in traced calls of an
H100 and an H200. Depthwise ones of several outputs for each channel are split where channels lie side by side.

It launches the groups on several streams. In an eager call that helps nobody, since the host takes longer to launch a
kernel than the device to run it: under a tracer 6 to 13 microseconds for each, 9 in the median, where all else takes
it two to three times as long as without. Half of that is assumed, on every card, since no such call was timed without
a tracer. A group has four kernels in NCHW, of which two turn it and one turns it back, one to three where channels
lie side by side, and one if it is depthwise.

In a captured graph, which keeps the streams as branches, groups run side by side: on an H100 and an H200 the two such
convolutions of a PiT, of 144 and 288 groups, take a fifth of what their kernels take one after the other, those of a
RegNet with 3, 8 and 17 half, those of a Visformer with 4 two thirds. A kernel that fills the device leaves no room
beside it: 64 groups of a ResNet that take 36 us each take three quarters. What is said of it here meets 50 captured
calls within 5.3 % in the mean, half of them within 2.6; the sum of their kernels is 12.5 % off.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.convolution import ConvolutionSizes
from dippm.costs.depthwise import is_depthwise
from dippm.costs.edges import IndexArray
from dippm.costs.kept_answers import keep_answers
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic

__all__ = ["group_launch_us", "run_by_group", "share_side_by_side", "split_depthwise"]

BoolArray = npt.NDArray[np.bool_]

# Channels of a group from which on it may have kernels of its own; from which on, and up to which, it has them among
# many groups; how many are few; and up to how many samples wider ones among many have them too.
_NARROW, _WIDE, _WIDEST = 16.0, 48.0, 82.0
_FEW_GROUPS, _FEW_SAMPLES = 6.0, 3.0
# So many groups take half as long side by side as one after the other.
_GROUPS = 12.0
# Kernels of so many ms fill the device; from then on the share is this, or that of so few groups.
_FULL_MS, _FULL = 0.05, 0.8
# Kernels of a group in NCHW and where channels lie side by side, and what the host takes to launch one.
_KERNELS, _KERNELS_LAST = 4.0, 2.0
_LAUNCH_US = 4.5


def split_depthwise(plan: KernelPlan, sizes: ConvolutionSizes, *, layout: Layout) -> BoolArray:
    """Which convolutions are depthwise ones with several outputs for each channel that have a kernel for each, [n].

    Args:
        plan: The kernels.
        sizes: Their convolutions.
        layout: Layout of the images.
    """
    is_split = _may_be_split(plan, sizes) & plan.formats[layout].is_last[sizes.node]
    if is_split.any():
        is_split &= is_depthwise(sizes, is_gradient=plan.is_backward[sizes.node])
        is_split &= sizes.in_channels[0] != sizes.out_channels[0]
    return is_split


def run_by_group(plan: KernelPlan, sizes: ConvolutionSizes, *, layout: Layout) -> tuple[IndexArray, FloatArray]:
    """Convolutions whose groups have kernels of their own, and how many groups have at each batch, 0 for none.

    Args:
        plan: The kernels.
        sizes: Their convolutions.
        layout: Layout of the images.

    Shapes:
        Result: [n] and [B, n].
    """
    may_be_split = _may_be_split(plan, sizes)
    if not may_be_split.any():
        return np.zeros(0, dtype=np.int64), np.zeros((len(sizes.batch), 0))
    read, written = (channels[0] / sizes.groups for channels in (sizes.in_channels, sizes.out_channels))
    is_wide = (read >= _WIDE) & ((read <= _WIDEST) | (sizes.batch <= _FEW_SAMPLES))
    has_own = (sizes.groups <= _FEW_GROUPS) | (read != written) | is_wide
    is_split = may_be_split & has_own & (read >= _NARROW) & (sizes.kernel_depth == 1.0)
    is_split |= split_depthwise(plan, sizes, layout=layout)
    chosen = np.flatnonzero(is_split.any(axis=0))
    return sizes.node[chosen], np.where(is_split, sizes.groups, 0.0)[:, chosen]


def share_side_by_side(one_by_one_ms: FloatArray, groups: FloatArray, *, most: float) -> FloatArray:
    """What such convolutions take in a captured graph, as a share of what their groups take one after the other.

    Args:
        one_by_one_ms: Time of all groups one after the other.
        groups: How many they are; 0 where one kernel runs all, which takes what it takes.
        most: How many times faster they run at most; 0 where nothing is known of it, which is no faster.

    Shapes:
        one_by_one_ms, result: [..., n]; groups: [n], or as those.
    """
    at_least = 1.0 / np.minimum(1.0 + groups / _GROUPS, max(most, 1.0))
    filled = np.minimum(one_by_one_ms / (np.maximum(groups, 1.0) * _FULL_MS), _FULL)
    result: FloatArray = np.maximum(at_least, filled)
    return result


@keep_answers
def group_launch_us(plan: KernelPlan, layout: Layout) -> FloatArray:
    """What the host takes to launch the kernels of all groups but the first of each such convolution, [n_nodes].

    Of those that are split in calls of a few samples alone it is left out, so that no larger batch takes less.

    Args:
        plan: The kernels.
        layout: Layout of the images.
    """
    result, sizes = np.zeros(len(plan.dispatch_us)), plan.work.convolution.at(np.array([_FEW_SAMPLES + 1.0]))
    if plan.has_cudnn_9:
        node, (groups,) = run_by_group(plan, sizes, layout=layout)
        kernels = np.where(plan.formats[layout].is_last[node], _KERNELS_LAST, _KERNELS)
        kernels[np.isin(node, sizes.node[sizes.in_channels[0] == sizes.groups])] = 1.0
        result[node] = _LAUNCH_US * kernels * (groups - 1.0)
    return result


def _may_be_split(plan: KernelPlan, sizes: ConvolutionSizes) -> BoolArray:
    """Which convolutions have several groups, go forward and compute in 16 bits."""
    result: BoolArray = (sizes.groups > 1.0) & ~plan.is_backward[sizes.node] & ~sizes.is_transposed
    if result.any():
        result &= plan.work.types.is_computed_in(Arithmetic.FP16, Arithmetic.BF16)[sizes.node]
    return result
