from __future__ import annotations

import pytest

from dippm.frontends.onnx.block_work import work_of
from dippm.graph import Node, OpKind

SHAPES = {
    0: (4, 8, 10, 10), 1: (6, 8, 3, 3), 2: (4, 6, 8, 8), 3: (4, 16), 4: (5, 16), 5: (4, 5), 6: (7, 4, 16),
    7: (1, 64, 16), 8: (7, 4, 16), 9: (2, 3, 6, 8), 10: (2, 3, 9, 8), 11: (2, 3, 6, 8), 12: (8, 6, 3, 3),
    13: (4, 6, 12, 12),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "attributes", "work"),
    [
        (OpKind.VIEW, (0,), 0, {}, 0),
        (OpKind.RELU, (0,), 0, {}, 4 * 8 * 10 * 10),
        (OpKind.CONV, (0, 1), 2, {}, 4 * 6 * 8 * 8 * (1 + 8 * 9)),
        (OpKind.CONV_TRANSPOSE, (0, 12), 13, {}, 4 * 6 * 12 * 12 + 4 * 8 * 10 * 10 * 6 * 9),
        (OpKind.LINEAR, (3, 4), 5, {}, 20 * (1 + 16)),
        (OpKind.MATMUL, (3, 4), 5, {"contracted": 48}, 20 * (1 + 48)),
        (OpKind.LSTM, (6, 7), 8, {}, 7 * 4 * 16 + 7 * 4 * 64 * 16),
        (OpKind.ATTENTION, (9, 10, 10), 11, {}, 2 * 3 * 6 * 8 * (1 + 2 * 9)),
        (OpKind.FILL, (), 3, {}, 4 * 16),
    ],
)
def test_work_by_hand(kind: OpKind, inputs: tuple[int, ...], output: int, attributes: dict, work: int) -> None:
    node = Node(kind=kind, inputs=inputs, outputs=(output,), attributes=attributes)
    assert work_of([node], SHAPES.__getitem__) == work
    assert work_of([node, node], SHAPES.__getitem__) == 2 * work


def test_an_input_that_is_left_out_has_no_size() -> None:
    node = Node(kind=OpKind.MATMUL, inputs=(-1, 4), outputs=(5,))
    assert work_of([node], SHAPES.__getitem__) == 20 * 2
