from __future__ import annotations

import pytest

from dippm.costs import Workload
from dippm.graph import OpKind

N_ELEMENTS = 2 * 64 * 8 * 8


def _flops(builder, kind, out=(64, 8, 8), **attributes):
    x = builder.input(builder.N, 64, 8, 8)
    builder.node(kind, [x], builder.N, *out, **attributes)
    return Workload.from_graph(builder.graph()).at([2]).flops[0, 0]


@pytest.mark.parametrize(
    ("kind", "attributes", "per_element"),
    [
        (OpKind.RELU, {}, 1), (OpKind.ADD, {}, 1), (OpKind.BATCH_NORM, {}, 2), (OpKind.GELU, {}, 12),
        (OpKind.UNARY, {"function": "sqrt"}, 2), (OpKind.UNARY, {"function": "never seen"}, 1),
        (OpKind.SOFTMAX, {"axes": (3,)}, 6), (OpKind.LAYER_NORM, {"axes_size": 8}, 8),
        (OpKind.COPY, {}, 0), (OpKind.VIEW, {}, 0), (OpKind.UNKNOWN, {}, 0),
        (OpKind.FFT, {}, 5 * 3), (OpKind.FFT, {"axes": (1,)}, 5 * 6), (OpKind.FFT, {"axes": (2, 3)}, 5 * (3 + 3)),
        (OpKind.FFT, {"axes": (1,), "parts": 2}, 5 * 6 / 2),
    ],
)  # fmt: skip
def test_flops_for_each_element(builder, kind, attributes, per_element):
    assert _flops(builder, kind, **attributes) == per_element * N_ELEMENTS


def test_pooling_counts_its_window_and_reductions_their_input(new_builder):
    assert _flops(new_builder(), OpKind.AVG_POOL, out=(64, 4, 4), kernel=(2, 2)) == N_ELEMENTS
    assert _flops(new_builder(), OpKind.MAX_POOL, out=(64, 4, 4), kernel=(3, 3)) == 9 * 2 * 64 * 16
    assert _flops(new_builder(), OpKind.GLOBAL_POOL, out=(64, 1, 1)) == N_ELEMENTS
    assert _flops(new_builder(), OpKind.REDUCE, out=(64,), function="sum") == N_ELEMENTS


def test_resizing_costs_its_neighbours(new_builder):
    out = (64, 16, 16)
    assert _flops(new_builder(), OpKind.RESIZE, out=out, mode="nearest") == 0
    assert _flops(new_builder(), OpKind.RESIZE, out=out, mode="bilinear") == 7 * 2 * 64 * 256
