"""Norms that published inference runs of timm models kept in 16 bits."""

from __future__ import annotations

import pytest

from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.costs.precision import Precision
from dippm.datasets.fast_norms import with_fast_norms
from dippm.graph import OpKind


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
