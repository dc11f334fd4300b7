import numpy as np
import pytest

from dippm.costs.flash_attention import split_rows

_SMS = np.array(108.0).reshape(1, 1, 1)


def rows(blocks: float, *, keys: float, width: float) -> float:
    result = split_rows(*(np.array([[[value]]]) for value in (blocks, keys, width)), _SMS)
    return float(result[0, 0, 0])


@pytest.mark.parametrize(
    ("blocks", "keys", "width", "expected"),
    [
        # Keys enough for all of the 216 blocks that the device runs: it works through what there is.
        (32, 8192, 128, 32 * 64),
        # 4 times 512 / 128 keys keep 16 of the 216 busy, as long as one block of each takes.
        (4, 512, 128, 4 * 64 * 216 / 16),
        # Heads of 64 take 256 keys a block, those beyond 128 take 64.
        (4, 512, 64, 4 * 64 * 216 / 8),
        (4, 512, 256, 4 * 64 * 216 / 32),
        # Four fifths of the device are enough.
        (172, 8192, 128, 172 * 64),
        (173, 8192, 128, float("inf")),
    ],
)
def test_rows_by_hand(blocks: float, keys: float, width: float, expected: float) -> None:
    assert rows(blocks, keys=keys, width=width) == pytest.approx(expected)
