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
# From this width on a first convolution cuts patches, and up to that one 16-bit kernels without copies run it while it
# has fewer outputs than these.
_PATCH_WIDTH, _WIDE_PATCH, _PATCH_OUTPUTS = 12, 32, 448
# What cuDNN has a kernel for first layers for, and the channels that it fills an image up to; other kernels want more.
_FIRST_LAYER_WIDTH, _FIRST_LAYER_STRIDE, _FIRST_LAYER_OUTPUTS = 7, 2, (32, 64)
_FIRST_LAYER_CHANNELS, _FULL_CHANNELS = 4, 8


def layout_copies(sizes: GraphSizes, types: TypePlan) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Bytes of the copies that each convolution would make on tensor cores, and which of them work in groups.

    cuDNN's tensor-core kernels work on channels-last data, so that what a channels-first convolution reads is brought
    to that order in workspace first, and what it writes is brought back from there. That is what traces on an H100 and
    an H200 show (`data/labels`, cuDNN 9.19, 67,000 convolutions in 16 bits at inference): copies of image, weight and
    result in 95 % of those whose filter has more than one pixel, and of image and result in 89 % of those of one pixel
    that skip pixels. No copies make 90 % of the other filters of one pixel, which are matrix products and read
    channels-first images as they are; depthwise convolutions, which have kernels of their own; and filters of up to
    5 x 5 pixels on the few channels of a model's first image, which FP32 units run. Nor do most gradients of weights in
    TF32.

    First convolutions differ by kernel. In FP16 cuDNN's own for first layers (7 x 7 pixels in steps of 2, 32 or 64
    outputs) fills the image up to 4 channels: so the allocator's peak is the measured one within 2 MiB in 76 % of 45
    captured calls, and in 40 % without. Patches of 12 pixels and more make no copies in 16 bits up to 31 pixels and
    447 outputs, and are filled up to 8 channels else; so are all first convolutions in BF16.

    Convolutions in groups copy channels-last images as well: with these copies 79 % of the batches at the border of
    models that have such convolutions are called right, without 74 %. One failure in five asked for at least 1.2 times
    what was predicted without them; with them one in twenty asks for 1.02 times (benchmark results of
    pytorch-image-models, AMP, channels-last, three releases, half of the models).

    Shapes:
        result: [n_nodes, D] and [n_nodes].
    """
    edges = sizes.edges
    is_half = types.is_computed_in(*_HALF)
    is_chosen = sizes.is_kind(*_CONVOLUTIONS) & types.is_computed_in(Arithmetic.TF32, *_HALF)
    is_chosen &= ~(sizes.is_kind(OpKind.CONV_WEIGHT_GRAD) & types.is_computed_in(Arithmetic.TF32))
    node = np.flatnonzero(is_chosen)
    width, stride, groups = sizes.read_attributes(node, _width_stride_and_groups, numbers=3).T
    channels = sizes.dimension(sizes.inputs(node, 0), 1).sum(axis=1)
    is_first = sizes.is_kind(OpKind.CONV)[node] & (channels <= _STEM_CHANNELS)
    outputs = sizes.dimension(sizes.outputs(node), 1).sum(axis=1)
    is_patch = is_first & is_half[node] & (width >= _PATCH_WIDTH)
    has_own_kernel = (is_first & (width <= _STEM_WIDTH)) | (
        is_patch & (width < _WIDE_PATCH) & (outputs < _PATCH_OUTPUTS)
    )
    copies = np.where(width > 1, ~has_own_kernel, stride > 1) & ((groups == 1) | (channels != groups))
    is_chosen[node] = copies
    in_groups = np.zeros(len(is_chosen), dtype=np.bool_)
    in_groups[node] = groups > 1

    filled = np.where(
        types.is_computed_in(Arithmetic.BF16)[node] | is_patch,
        _FULL_CHANNELS,
        np.where(
            (width == _FIRST_LAYER_WIDTH) & (stride == _FIRST_LAYER_STRIDE) & np.isin(outputs, _FIRST_LAYER_OUTPUTS),
            _FIRST_LAYER_CHANNELS,
            0,
        ),
    )
    is_filled = is_first & is_half[node]
    growth = np.ones((2, len(is_chosen)))
    growth[0, node] = np.where(is_filled, np.maximum(filled / np.maximum(channels, 1.0), 1.0), 1.0)
    # A filter of one pixel is the same in both orders.
    growth[1, node] = np.where(width > 1, growth[0, node], 0.0)

    result = np.zeros((len(is_chosen), sizes.elements.shape[1]))
    read = np.flatnonzero(is_chosen[edges.read_node] & (edges.read_position < 2))
    tensor, reader = edges.read_tensor[read], edges.read_node[read]
    factor = types.read_bytes[read] * growth[edges.read_position[read], reader]
    np.add.at(result, reader, scale(sizes.elements_of(tensor), factor))
    written = np.flatnonzero(is_chosen)
    out = sizes.outputs(written)
    result[written] += scale(sizes.elements_of(out), types.tensor_bytes[out])
    return result, in_groups


def _width_stride_and_groups(attributes: Mapping[str, Attribute]) -> tuple[float, float, float]:
    kernel, stride, groups = (attributes.get(name) for name in ("kernel", "stride", "groups"))
    return (
        max(kernel) if isinstance(kernel, tuple) else _STEM_WIDTH + 1,
        max(stride) if isinstance(stride, tuple) else 1,
        groups if isinstance(groups, int | float) else 1,
    )
