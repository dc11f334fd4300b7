"""What published inference runs of timm models had that their tables do not say."""

from __future__ import annotations

import pytest

from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.costs.conditions import Layout
from dippm.costs.precision import Precision
from dippm.evaluation.benchmarked_models import refuses_batch, with_fast_norms
from dippm.graph import Dim, OpKind


def _live_mb(graph, batch=64):
    timeline = MemoryTimeline.from_workload(Workload.from_graph(graph, Precision.AMP))
    return live_memory(timeline, batch).peak_bytes[0] / 2**20


def _norms(builder, kind):
    n = builder.N
    x = builder.input(n, 1024, 1024)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(1024, 1024)], n, 1024, 1024)
    x = builder.node(kind, [x], n, 1024, 1024)
    return builder.graph(x)


def test_fast_norms_keep_16_bits(builder):
    graph = _norms(builder, OpKind.LAYER_NORM)
    # The norm's cast to FP32 and its FP32 result become one result in FP16.
    assert _live_mb(with_fast_norms(graph, "convnext_tiny")) < 0.75 * _live_mb(graph)


@pytest.mark.parametrize("model", ["vit_base_patch16_224", "swin_tiny_patch4_window7_224", "eva_large_patch14_196"])
def test_layer_norms_of_pytorch_are_not_fast(builder, model):
    graph = _norms(builder, OpKind.LAYER_NORM)
    assert with_fast_norms(graph, model) is graph
    assert with_fast_norms(graph, "eva_giant_patch14_336") is not graph


def test_group_norms_are_fast_in_every_model(builder):
    graph = _norms(builder, OpKind.GROUP_NORM)
    assert with_fast_norms(graph, "vit_base_r50_s16_384") is not graph


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
