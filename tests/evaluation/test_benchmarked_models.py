"""What published inference runs of timm models had that their tables do not say."""

from __future__ import annotations

import pytest

from dippm.costs.conditions import Layout
from dippm.evaluation.benchmarked_models import refuses_batch
from dippm.graph import Dim, OpKind


@pytest.mark.parametrize("layout", list(Layout))
def test_fused_attention_takes_65535_windows(builder, layout):
    windows = Dim(5, 0)
    x = builder.input(windows, 4, 49, 32)
    x = builder.node(OpKind.ATTENTION, [x, x, x], windows, 4, 49, 32)
    graph = builder.graph(x)
    assert not refuses_batch(graph, 65_535 // 5, layout)
    assert refuses_batch(graph, 65_536 // 5 + 1, layout)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "is_refused"),
    [
        (96, 3, 1, False),
        (96, 3, 2, True),
        (96, 7, 1, True),
        (256, 3, 2, False),
        (256, 1, 2, True),
        (16, 3, 1, True),
    ],
)
def test_the_native_depthwise_convolution_counts_in_32_bits(builder, channels, kernel, stride, is_refused):
    n = builder.N
    x = builder.input(n, channels, 128, 128)
    x = builder.node(
        OpKind.CONV, [x, builder.weight(channels, 1, kernel, kernel)], n, channels, 128 // stride, 128 // stride,
        groups=channels, kernel=(kernel, kernel), stride=(stride, stride), dilation=(1, 1), padding=(0, 0),
    )  # fmt: skip
    graph = builder.graph(x)
    limit = 2**31 // (channels * 128 * 128)
    assert refuses_batch(graph, limit + 1, Layout.NCHW) is is_refused
    assert not refuses_batch(graph, limit - 1, Layout.NCHW)
    assert not refuses_batch(graph, limit + 1, Layout.NHWC)


def test_ordinary_convolutions_take_any_batch(builder):
    n = builder.N
    x = builder.input(n, 96, 128, 128)
    x = builder.node(OpKind.CONV, [x, builder.weight(96, 96, 7, 7)], n, 96, 128, 128, groups=1, kernel=(7, 7))
    assert not refuses_batch(builder.graph(x), 4096, Layout.NCHW)
