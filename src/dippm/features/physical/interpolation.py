"""Interpolating resizes, whose time is that of one thread rather than of what they move."""

from __future__ import annotations

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray
from dippm.costs.resizing import count_planes, resizes_in_turn
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec

__all__ = ["interpolation_ms"]

# Of an interpolating kernel: threads that run at a time, and cycles in which one works out a pixel. The latter from
# EfficientFormerV2 (timm's tables), most of whose time is that of its two to six resizes: 502 to 522 on an RTX 3090,
# 634 to 654 on an RTX 4090, in either layout and at four sizes of the model.
_THREADS_PER_SM = 1536
_CYCLES_PER_IMAGE = 570


def interpolation_ms(plan: KernelPlan, at: WorkloadAt, *, layout: Layout, device: DeviceSpec) -> FloatArray:
    """Time that interpolating resizes take beyond their traffic, [B, n_nodes].

    PyTorch's kernels run one thread per pixel of the result, which walks over all samples and channels. Small
    images of many channels leave most of the device idle: all that counts is how long one thread takes.

    Args:
        plan: The kernels.
        at: The work at the batch sizes.
        layout: Layout that the models are called with.
        device: The device.
    """
    result = np.zeros_like(at.flops)
    node = resizes_in_turn(plan, layout)
    if len(node):
        planes, pixels = count_planes(plan.work.sizes, node, at)
        turns = np.ceil(pixels / (device.sm_count * _THREADS_PER_SM))
        result[:, node] = planes * turns * _CYCLES_PER_IMAGE / (device.boost_clock_mhz * 1e3)
    return result
