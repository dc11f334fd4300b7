"""How contractions cut into tiles, and the sizes of rows and windows."""

from __future__ import annotations

import numpy as np

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec
from dippm.features.physical.columns import SIZES

__all__ = ["tile_columns", "wave_columns"]

_TILE = 128.0


def tile_columns(at: WorkloadAt, node: IndexArray) -> tuple[dict[str, FloatArray], FloatArray]:
    """Columns of each chosen node that follow from its problem's sizes alone, and its tiles, [B, n] each.

    Args:
        at: The work at the batch sizes.
        node: The chosen nodes.
    """
    shape = at.flops.shape
    sizes = np.ones((len(SIZES), *shape))
    gemm, convolution, attention, recurrent = at.gemm, at.convolution, at.attention, at.recurrent
    sizes[:, :, gemm.node] = [gemm.b, gemm.m, gemm.n, gemm.k]
    groups, area = np.maximum(convolution.groups, 1.0), convolution.kernel_height * convolution.kernel_width
    sizes[0][:, convolution.node] = groups
    sizes[1][:, convolution.node] = convolution.batch * convolution.out_height * convolution.out_width
    sizes[2][:, convolution.node] = convolution.out_channels / groups
    sizes[3][:, convolution.node] = convolution.in_channels / groups * area
    sizes[:, :, attention.node] = [
        attention.batch * attention.heads,
        attention.queries,
        attention.keys,
        attention.width,
    ]
    sizes[1][:, recurrent.node] = recurrent.batch
    sizes[2][:, recurrent.node] = recurrent.hidden_size * recurrent.gates
    sizes[3][:, recurrent.node] = recurrent.input_size
    sizes = np.maximum(sizes.take(node, axis=2), 1.0)
    tiles = sizes[0] * np.ceil(sizes[1] / _TILE) * np.ceil(sizes[2] / _TILE)
    others = np.zeros((2, *shape))
    others[0][:, at.row.node] = np.log(np.maximum(at.row.width, 1.0))
    others[1][:, at.pool.node] = np.log(np.maximum(at.pool.window, 1.0))
    row_width, window = others.take(node, axis=2)
    columns = {
        **{name: np.log(values) for name, values in zip(SIZES, sizes, strict=True)},
        **{f"{name}_by_8": values % 8 == 0 for name, values in zip(SIZES[1:], sizes[1:], strict=True)},
        "row_width": row_width,
        "window": window,
    }
    return columns, tiles


def wave_columns(tiles: FloatArray, device: DeviceSpec) -> dict[str, FloatArray]:
    """Columns that follow from how a device's multiprocessors share the tiles of each problem, [B, n] each."""
    waves = tiles / device.sm_count
    return {"waves": np.log(waves), "last_wave": waves / np.ceil(waves)}
