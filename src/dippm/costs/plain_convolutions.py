"""Convolutions as the tables of single kernels ask for them."""

from __future__ import annotations

import numpy as np

from dippm.costs.convolution import ConvolutionSizes
from dippm.costs.edges import IndexArray
from dippm.costs.kernels.mapping import ConvShape
from dippm.costs.polynomial import FloatArray

__all__ = ["shape_of"]


def shape_of(sizes: ConvolutionSizes, columns: IndexArray) -> ConvShape:
    """Shapes of some convolutions at each batch, all of one batch size first, [B * U].

    A transposed convolution is the gradient of one: input and output change places.

    Args:
        sizes: Sizes of all convolutions.
        columns: The chosen ones, [U].
    """
    batch = np.maximum(sizes.batch[:, columns], 1.0)

    def flat(size: FloatArray) -> FloatArray:
        raveled: FloatArray = np.maximum(np.broadcast_to(size[..., columns], batch.shape), 1.0).ravel()
        return raveled

    swap = np.broadcast_to(sizes.is_transposed[columns], batch.shape).ravel()
    pairs = [
        (flat(first), flat(second))
        for first, second in (
            (sizes.in_channels, sizes.out_channels),
            (sizes.in_height, sizes.out_height),
            (sizes.in_width, sizes.out_width),
        )
    ]
    (cin, cout), (in_height, out_height), (in_width, out_width) = (
        (np.where(swap, second, first), np.where(swap, first, second)) for first, second in pairs
    )
    return ConvShape(
        batch=batch.ravel(),
        in_channels=cin,
        out_channels=cout,
        kernel_height=flat(sizes.kernel_height),
        kernel_width=flat(sizes.kernel_width),
        kernel_depth=flat(sizes.kernel_depth),
        stride=np.maximum(flat(sizes.stride_height), flat(sizes.stride_width)),
        dilation=np.maximum(flat(sizes.dilation_height), flat(sizes.dilation_width)),
        groups=flat(sizes.groups),
        in_height=in_height,
        in_width=in_width,
        out_height=out_height,
        out_width=out_width,
    )
