"""Convolutions over nearly a whole image, as in the head of a VGG, that cuDNN runs outside of tensor cores.

A filter of 7 x 7 pixels over an image of 7 to 12 is the first linear layer of such a network, written as a convolution.
By what cuDNN 9.19 knows before it runs, not by trial (``torch.backends.cudnn.benchmark`` is off unless somebody
switches it on), half of these in 16 bits get a kernel of plain sums, ``precomputed_convolve_sgemm``, and take
four to fifteen times what tensor cores take for the others. Of 139 that were traced on an H100 and an H200
(`data/labels`) the rules here choose the kernel of 125. They know nothing of channels; what decides about the 14 was
not found. Compiled models were not traced, nor was any backward pass found to run it: both keep tensor cores.

A block of that kernel adds up 64 x 128 numbers of the result, one term after the other, whatever the device does
beside it: so few blocks leave most of a device idle, and its time is that of the terms.
"""

from __future__ import annotations

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["plain_head_terms"]

_FILTER = 7.0
# The filters that were traced have at least so many channels and outputs: 256 and 1,024.
_LEAST_CHANNELS, _LEAST_OUTPUTS = 128.0, 512.0
# The widest image of 12 pixels leaves a filter six places in a row, and most results together had so many pixels. Of
# larger ones, as of networks that are convolutions throughout, nothing was traced: they are taken to need the time of
# their terms once, which no tensor cores of many samples are held up by, and never less than smaller images.
_MOST_PLACES, _MOST_PIXELS = 6.0, 4608.0
# Least pixels of all results where a filter covers the image whole, and where it has three places in a row or more. Two
# in a row always get that kernel in NCHW, and more than one never in NHWC.
_LEAST_WHOLE, _LEAST_SPREAD = 16.0, 128.0
_BLOCK_PIXELS, _BLOCK_OUTPUTS = 64.0, 128.0
# Blocks that run on a multiprocessor at a time without holding each other up: the median of three heads of up to four
# times as many.
_BLOCKS_PER_SM = 1.8
_IN_16_BITS = (Arithmetic.FP16, Arithmetic.BF16)


def plain_head_terms(
    plan: KernelPlan, at: WorkloadAt, *, layout: Layout, sm_count: int
) -> tuple[IndexArray, FloatArray]:
    """Convolutions that are likely to run as plain sums, and how many terms a multiprocessor adds up in turn for each.

    Args:
        plan: The kernels.
        at: Their work.
        layout: Layout of the images.
        sm_count: Multiprocessors of the device.

    Returns:
        The nodes, and the terms at each batch; 0 where the kernel of tensor cores is likely.

    Shapes:
        Result: [n] and [B, n].
    """
    convolution = at.convolution
    is_head = (convolution.kernel_height == _FILTER) & (convolution.kernel_width == _FILTER)
    is_head &= (convolution.groups == 1.0) & (convolution.stride_height == 1.0) & (convolution.stride_width == 1.0)
    is_head &= (convolution.dilation_height == 1.0) & (convolution.dilation_width == 1.0) & ~convolution.is_transposed
    if not is_head.any():
        return np.zeros(0, dtype=np.int64), np.zeros((len(at.batches), 0))
    is_head &= plan.work.sizes.is_kind(OpKind.CONV)[convolution.node]
    is_head &= np.isin(plan.arithmetic[convolution.node], [list(Arithmetic).index(each) for each in _IN_16_BITS])
    is_head &= plan.work.sizes.rank(plan.work.sizes.inputs(convolution.node, 1)) == 4
    head = convolution.take(np.flatnonzero(is_head))
    is_traced = (head.in_channels >= _LEAST_CHANNELS) & (head.out_channels >= _LEAST_OUTPUTS)
    # Without padding.
    is_traced &= (head.in_height == head.out_height + _FILTER - 1.0) & (head.in_width == head.out_width + _FILTER - 1.0)
    is_traced &= head.out_height == head.out_width
    places, pixels = head.out_width, head.batch * head.out_height * head.out_width
    is_plain = (places == 1.0) & (pixels >= _LEAST_WHOLE)
    if layout is Layout.NCHW:
        is_plain |= (places == 2.0) | ((places > 2.0) & (pixels >= _LEAST_SPREAD))
    counted = np.where(places <= _MOST_PLACES, np.minimum(pixels, _MOST_PIXELS), 1.0)
    blocks = np.ceil(counted / _BLOCK_PIXELS) * np.ceil(head.out_channels / _BLOCK_OUTPUTS)
    in_turn = np.maximum(blocks / (_BLOCKS_PER_SM * sm_count), 1.0)
    terms = head.in_channels * _FILTER**2 * in_turn
    return head.node, np.where(is_plain & is_traced, terms, 0.0)
