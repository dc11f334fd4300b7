"""Which kernel a depthwise convolution runs: PyTorch's own or cuDNN's.

PyTorch asks cuDNN for images with their channels last, and for NCHW ones in FP16 of the sizes at which that was found
to be faster (``use_cudnn_depthwise`` in ``ATen/native/Convolution.cpp``, the same since PyTorch 1.10). Everything else
runs on a kernel of its own, which computes each output by itself: FP32, TF32 and BF16, filters other than 1, 3 and 5
pixels wide, dilated ones, images under 7 pixels wide, less than 32 channels, and many with a stride of 2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.convolution import ConvolutionSizes

__all__ = ["is_depthwise", "runs_natively"]

BoolArray = npt.NDArray[np.bool_]

_FEWEST_CHANNELS, _SMALLEST_WIDTH = 32, 7
_FILTERS = (1.0, 3.0, 5.0)
# With a stride of 2: enough channels, or fewer of a wide image.
_MANY, _SEVERAL, _WIDE = 512, 256, 28
# The same with a filter of one pixel: small batches of small images.
_SMALL_BATCH, _POINT_CHANNELS = 16, 128


def is_depthwise(sizes: ConvolutionSizes, *, is_gradient: BoolArray) -> BoolArray:
    """Which convolutions have groups of one channel, [n]; a transposed one has them only as a gradient.

    Args:
        sizes: The convolutions.
        is_gradient: Which of them are gradients of another's image, [n].
    """
    image, other = _image_channels(sizes, is_gradient)[0], sizes.out_channels[0]
    other = np.where(is_gradient, sizes.in_channels[0], other)
    groups = sizes.groups
    result: BoolArray = (groups > 1.0) & (groups == image) & (other % groups == 0.0)
    return result & (~sizes.is_transposed | is_gradient)


def runs_natively(
    sizes: ConvolutionSizes, *, is_half: BoolArray, is_last: BoolArray, is_gradient: BoolArray
) -> BoolArray:
    """Which convolutions run on PyTorch's own depthwise kernel, [B, n].

    Args:
        sizes: The convolutions.
        is_half: Which of them compute in FP16.
        is_last: Which of them work on channels that lie side by side.
        is_gradient: Which of them are gradients of another's image.

    Shapes:
        is_half, is_last, is_gradient: [n].
    """
    channels = _image_channels(sizes, is_gradient)
    width = np.where(is_gradient, sizes.out_width, sizes.in_width)
    height = np.where(is_gradient, sizes.out_height, sizes.in_height)
    kernel, stride, batch = sizes.kernel_width, sizes.stride_width, sizes.batch
    is_single = batch == 1.0
    point = np.where(
        is_single, width <= _WIDE, (batch <= _SMALL_BATCH) & (channels >= _POINT_CHANNELS) & (width <= _SMALLEST_WIDTH)
    )
    wider = is_single | (channels >= _MANY) | ((channels >= _SEVERAL) & (width >= _WIDE))
    is_served = (stride == 1.0) | ((stride == 2.0) & np.where(kernel == 1.0, point, wider))
    is_served &= (sizes.kernel_height == kernel) & np.isin(kernel, _FILTERS) & (width >= _SMALLEST_WIDTH)
    is_line = (height == 1.0) & (stride == 1.0)
    is_served |= is_line
    is_served &= is_half & (channels >= _FEWEST_CHANNELS)
    is_served &= (sizes.dilation_height == 1.0) & (sizes.dilation_width == 1.0)
    is_served &= (sizes.stride_height == stride) | (height == 1.0)
    result: BoolArray = is_depthwise(sizes, is_gradient=is_gradient) & ~is_last & ~is_served
    return result


def _image_channels(sizes: ConvolutionSizes, is_gradient: BoolArray) -> npt.NDArray[np.float64]:
    return np.where(is_gradient, sizes.out_channels, sizes.in_channels)
