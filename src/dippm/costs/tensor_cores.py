"""Time of matrix products on tensor cores, for which there is no kernel table: tiles, waves and bandwidth.

A product of m x k by k x n is cut into output tiles, one per SM at a time. What tiles overhang and what the last wave
leaves idle is lost; small tiles lose less and run slower, because they reload their operands more often. The library is
taken to pick the fastest. Where the sum is much longer than the output is large, as in the gradient of a weight, the
library lets several SMs share a tile: what is deeper than a few thousand counts as spread over all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FEW_ROWS", "narrow_gemm_seconds", "tensor_gemm_seconds"]

FloatArray = npt.NDArray[np.float64]

# Rows, columns, and the share of the largest tile's rate: operand reuse of a tile is rows * columns / (rows + columns).
_TILES = np.array(
    [
        (256.0, 128.0, 1.0),
        (128.0, 256.0, 1.0),
        (128.0, 128.0, 0.95),
        (128.0, 64.0, 0.8),
        (64.0, 128.0, 0.8),
        (64.0, 64.0, 0.6),
        (64.0, 32.0, 0.4),
    ]
)
# Height of what one instruction of a tensor core multiplies, and the share of the largest tile's rate: an assumption.
_NARROW_ROWS, _NARROW_RATE = 16.0, 0.8
#: Rows up to which libraries have such kernels for weights of 16 bits; measured image models have more.
FEW_ROWS = 32.0
_DEPTH = 32.0
# Depth at which filling and draining a tile's pipeline takes as long as its work.
_PIPELINE_DEPTH = 64.0
# Depth from which a tile's sum is split: an assumption, above what the layers of measured networks have in inference.
_SPLIT_DEPTH = 4096.0


def narrow_gemm_seconds(
    b: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, *, peak_flops: FloatArray
) -> FloatArray:
    """The same by kernels made for few rows: tiles of 16 rows, their sums shared by all SMs.

    Up to some tens of rows such a kernel takes the time to read the weights, which no tile of the usual size does:
    those of weights of few bits (Frantar et al., MARLIN, 2024), and what libraries take for one token of a decoder.

    Args:
        b: Independent products, 1 or more.
        m: Rows of the output.
        n: Columns of the output.
        k: Length of the sum.
        peak_flops: Peak rate of the device in each product's format, FLOP/s.

    Shapes:
        All arrays and the result broadcast together.
    """
    result: FloatArray = 2.0 * b * np.ceil(m / _NARROW_ROWS) * _NARROW_ROWS * n * k / (_NARROW_RATE * peak_flops)
    return result


def tensor_gemm_seconds(
    b: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, *, peak_flops: FloatArray, sm_count: FloatArray | int
) -> FloatArray:
    """Time of the arithmetic of ``b`` products at the peak rate, tile losses included.

    Args:
        b: Independent products, 1 or more.
        m: Rows of the output.
        n: Columns of the output.
        k: Length of the sum.
        peak_flops: Peak rate of the device in each product's format, FLOP/s.
        sm_count: Streaming multiprocessors.

    Shapes:
        All arrays and the result broadcast together.
    """
    depth = np.ceil(k / _DEPTH) * _DEPTH + _PIPELINE_DEPTH
    # All tiles at once, in front of what the arrays broadcast to.
    axes = np.broadcast(b, m, n, k, peak_flops, sm_count).ndim
    rows, columns, rate = _TILES.T.reshape(3, -1, *(1,) * axes)
    tiles = b * np.ceil(m / rows) * np.ceil(n / columns) / sm_count
    steps = np.ceil(tiles) * np.minimum(depth, _SPLIT_DEPTH) + tiles * np.maximum(depth - _SPLIT_DEPTH, 0.0)
    seconds = steps * (2.0 * rows * columns * sm_count / rate) / peak_flops
    fastest: FloatArray = seconds.min(axis=0)
    return fastest
