"""How FlashAttention shares few queries among the multiprocessors of a device.

FlashAttention 2 (``flash_api.cpp``; in PyTorch from 2.2 on) lets several blocks share the keys of a head where blocks
of 64 queries would leave more than a fifth of the device idle: where a decoder makes one token after another.
"""

from __future__ import annotations

import numpy as np

from dippm.costs.polynomial import FloatArray

__all__ = ["SPLIT_TILE", "split_rows"]

SPLIT_TILE = 64.0
"""Queries of a block, where keys are shared."""

_BLOCKS_PER_SM = 2.0
_SPLIT_BELOW = 0.8
# Keys of a block for heads up to such a width, and beyond.
_KEYS = ((64.0, 256.0), (128.0, 128.0))
_FEWEST_KEYS = 64.0


def split_rows(blocks: FloatArray, keys: FloatArray, width: FloatArray, sms: FloatArray) -> FloatArray:
    """Rows of queries that the whole device would work through in the same time.

    Args:
        blocks: Blocks of 64 queries of all heads.
        keys: Keys of a head.
        width: Width of a head.
        sms: Multiprocessors.

    Returns:
        The rows, infinite where keys are not shared.

    Shapes:
        blocks: [D, B, U] or [1, B, U]; keys, width: [B, U]; sms: [D, 1, 1]; result: [D, B, U].
    """
    keys_of_block = np.select([width <= most for most, _ in _KEYS], [tile for _, tile in _KEYS], _FEWEST_KEYS)
    slots = _BLOCKS_PER_SM * sms
    busy_slots = np.minimum(blocks * np.ceil(keys / keys_of_block), slots)
    result: FloatArray = np.where(blocks < _SPLIT_BELOW * slots, blocks * SPLIT_TILE * slots / busy_slots, np.inf)
    return result
