"""Copies that convolutions on tensor cores make of their tensors, to channels-last order and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dippm.costs.polynomial import FloatArray, scale
from dippm.costs.precision import Arithmetic, TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.graph import Attribute, OpKind

__all__ = ["layout_copies"]

_CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD})
_HALF = frozenset({Arithmetic.FP16, Arithmetic.BF16})
# Most channels of an image, and widest filter, of a first convolution that tensor cores do not run.
_STEM_CHANNELS, _STEM_WIDTH = 4, 5
# First convolutions with filters and steps of at least so many pixels cut patches. 16-bit kernels without copies run
# them below the wide ones while they have fewer outputs than these.
_PATCH_WIDTH, _PATCH_STRIDE, _WIDE_PATCH, _PATCH_OUTPUTS = 12, 8, 32, 448
# What cuDNN has a kernel for first layers for, and the channels that it fills an image up to; other kernels want more.
_FIRST_LAYER, _FIRST_LAYER_OUTPUTS = ((7, 7), (2, 2)), (32, 64)
_FIRST_LAYER_CHANNELS, _FULL_CHANNELS = 4.0, 8.0
_IMAGE_AXES = 2


def layout_copies(sizes: GraphSizes, types: TypePlan) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Bytes of the copies that each convolution would make on tensor cores, and which of them work in groups.

    cuDNN's tensor-core kernels work on channels-last data, so that what a channels-first convolution reads is brought
    to that order in workspace first, and what it writes is brought back from there. That is what traces on an H100 and
    an H200 show (`data/labels`, cuDNN 9.19, 67,000 convolutions in 16 bits at inference): copies of image, weight and
    result in 95 % of those whose filter has more than one pixel, and of image and result in 89 % of those of one pixel
    that skip pixels. No copies make 90 % of the other filters of one pixel, which are matrix products and read
    channels-first images as they are; depthwise convolutions, which have kernels of their own; and filters of up to
    5 x 5 pixels on the few channels of a model's first image, which FP32 units run. Most gradients of weights in TF32
    make none either.

    Wider first convolutions differ by kernel. In FP16 cuDNN's own for first layers (7 x 7 pixels in steps of 2, 32 or
    64 outputs) fills the image up to 4 channels: so the allocator's peak is the measured one within 2 MiB in 76 % of 45
    captured calls, and in 40 % without. Patches make no copies in 16 bits below 32 pixels and 448 outputs, and are
    filled up to 8 channels else; so are the others in BF16.

    Convolutions in groups copy channels-last images as well: with these copies 79 % of the batches at the border of
    models that have such convolutions are called right, without 74 %. One failure in five asked for at least 1.2 times
    what was predicted without them; with them one in twenty asks for 1.02 times (benchmark results of
    pytorch-image-models, AMP, channels-last, three releases, half of the models).

    Shapes:
        result: [n_nodes, D] and [n_nodes].
    """
    edges = sizes.edges
    is_chosen = sizes.is_kind(*_CONVOLUTIONS) & types.is_computed_in(Arithmetic.TF32, *_HALF)
    is_chosen &= ~(sizes.is_kind(OpKind.CONV_WEIGHT_GRAD) & types.is_computed_in(Arithmetic.TF32))
    node = np.flatnonzero(is_chosen)
    width, stride, groups, is_image, is_first_layer = sizes.read_attributes(node, _stated, numbers=5).T
    channels = sizes.dimension(sizes.inputs(node, 0), 1).sum(axis=1)
    outputs = sizes.dimension(sizes.outputs(node), 1).sum(axis=1)
    is_half = types.is_computed_in(*_HALF)[node]
    is_first = sizes.is_kind(OpKind.CONV)[node] & (channels <= _STEM_CHANNELS)
    is_patch = is_first & is_half & (is_image > 0) & (width >= _PATCH_WIDTH) & (stride >= _PATCH_STRIDE)
    is_copied = ~(is_first & (width <= _STEM_WIDTH))
    is_copied &= ~(is_patch & (width < _WIDE_PATCH) & (outputs < _PATCH_OUTPUTS))
    is_copied = np.where(width > 1, is_copied, is_half & (stride > 1))
    is_chosen[node] = is_copied & ((groups == 1) | (channels != groups))
    in_groups = np.zeros(len(is_chosen), dtype=np.bool_)
    in_groups[node] = groups > 1

    wanted = np.where((is_first_layer > 0) & np.isin(outputs, _FIRST_LAYER_OUTPUTS), _FIRST_LAYER_CHANNELS, 0.0)
    wanted[is_patch | (types.is_computed_in(Arithmetic.BF16)[node] & (is_image > 0))] = _FULL_CHANNELS
    filled = np.where(is_first & is_half, np.maximum(wanted / np.maximum(channels, 1.0), 1.0), 1.0)
    # Of the two that are read and of the result, how many times as much is copied. A filter of one pixel is the same in
    # both orders: it is the second that is read, or what a gradient of weights writes.
    copied = np.ones((3, len(is_chosen)))
    copied[:2, node] = filled
    is_point, is_gradient = width == 1, sizes.is_kind(OpKind.CONV_WEIGHT_GRAD)[node]
    copied[1, node[is_point & ~is_gradient]] = copied[2, node[is_point & is_gradient]] = 0.0

    result = np.zeros((len(is_chosen), sizes.elements.shape[1]))
    read = np.flatnonzero(is_chosen[edges.read_node] & (edges.read_position < 2))
    tensor, reader = edges.read_tensor[read], edges.read_node[read]
    factor = types.read_bytes[read] * copied[edges.read_position[read], reader]
    np.add.at(result, reader, scale(sizes.elements_of(tensor), factor))
    written = np.flatnonzero(is_chosen)
    out = sizes.outputs(written)
    result[written] += scale(sizes.elements_of(out), types.tensor_bytes[out] * copied[2, written])
    return result, in_groups


def _stated(attributes: Mapping[str, Attribute]) -> tuple[float, float, float, bool, bool]:
    """Widest side of the filter, smallest step, groups; whether it is of images, and of the size of first layers."""
    kernel, stride, groups = (attributes.get(name) for name in ("kernel", "stride", "groups"))
    kernel = kernel if isinstance(kernel, tuple) else (_STEM_WIDTH + 1,)
    stride = stride if isinstance(stride, tuple) else (1,)
    return (
        max(kernel),
        min(stride),
        groups if isinstance(groups, int | float) else 1,
        len(kernel) == _IMAGE_AXES,
        (kernel, stride) == _FIRST_LAYER,
    )
