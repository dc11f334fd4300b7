"""A model as one row of summed costs."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.families import WorkFamily
from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.errors import UsageError
from dippm.features.cost_sums import COST_COLUMNS, compute_cost_sums
from dippm.graph import OpKind

_MIB = 2**20
_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


@pytest.fixture(name="graph")
def _graph(builder):
    x = builder.input(builder.N, 16, 64, 64)
    y = builder.node(OpKind.CONV, [x, builder.weight(32, 16, 3, 3)], builder.N, 32, 64, 64, **_CONV)
    y = builder.node(OpKind.RELU, [y], builder.N, 32, 64, 64)
    y = builder.node(OpKind.REDUCE, [y], builder.N, 32, axes=(2, 3), function="mean")
    y = builder.node(OpKind.VIEW, [y], builder.N, 32, alias_of=y)
    builder.node(OpKind.LINEAR, [y, builder.weight(10, 32), builder.weight(10)], builder.N, 10)
    return builder.graph()


def _named(row):
    return dict(zip(COST_COLUMNS, row.tolist(), strict=True))


def test_by_hand(graph):
    sums = _named(compute_cost_sums(graph, [4])[0])
    read, image = 4 * 16 * 64 * 64, 4 * 32 * 64 * 64
    conv_macs, linear_macs = image * 16 * 9, 4 * 10 * 32
    flops = {
        "convolution": 2 * conv_macs,
        "elementwise": image,
        "reduction": image,
        "gemm": 2 * linear_macs,
    }
    traffic = {
        "convolution": read + 32 * 16 * 9 + image,
        "elementwise": 2 * image,
        "reduction": image + 128,
        "gemm": 128 + 320 + 10 + 40,
    }
    assert sums["batch"] == 4
    assert sums["macs"] == conv_macs + linear_macs
    assert sums["flops"] == sum(flops.values())
    assert sums["traffic_mb"] == pytest.approx(4 * sum(traffic.values()) / _MIB)
    assert sums["written_mb"] == pytest.approx(4 * (2 * image + 128 + 40) / _MIB)
    assert sums["parameters"] == 32 * 16 * 9 + 330
    # 19.5 TFLOPS and 1555 GB/s: the convolution computes for longer than it moves, all others move.
    moved = sum(4 * count for family, count in traffic.items() if family != "convolution")
    expected_ms = max(flops["convolution"] / 19.5e9, 4 * traffic["convolution"] / 1555e6) + moved / 1555e6
    assert sums["roofline_ms"] == pytest.approx(expected_ms, rel=1e-3)
    assert sums["operators"] == 4
    for family in WorkFamily:
        if family is WorkFamily.FREE:
            continue
        assert sums[f"operators_{family}"] == (1 if family in flops else 0)
        assert sums[f"flops_{family}"] == flops.get(family, 0)
        assert sums[f"traffic_mb_{family}"] == pytest.approx(4 * traffic.get(family, 0) / _MIB)


def test_memory_is_that_of_the_timeline(graph):
    sums = _named(compute_cost_sums(graph, [3])[0])
    memory = live_memory(MemoryTimeline.from_workload(Workload.from_graph(graph)), [3])
    assert sums["live_peak_mb"] == memory.peak_bytes[0] / _MIB > 0
    assert sums["workspace_mb"] == memory.workspace_bytes[0] / _MIB


def test_all_batches_at_once_equal_one_by_one(graph):
    batches = [1, 7, 256]
    together = compute_cost_sums(graph, batches)
    assert together.shape == (3, len(COST_COLUMNS))
    assert len(set(COST_COLUMNS)) == len(COST_COLUMNS)
    for row, batch in zip(together, batches, strict=True):
        np.testing.assert_array_equal(row, compute_cost_sums(graph, [batch])[0])


def test_half_precision_halves_the_bytes(graph):
    full, half = (
        _named(compute_cost_sums(graph, [4], precision=precision)[0]) for precision in (Precision.FP32, Precision.FP16)
    )
    assert half["traffic_mb"] == pytest.approx(full["traffic_mb"] / 2)
    assert half["flops"] == full["flops"]


def test_a_graph_without_nodes(builder):
    builder.input(builder.N, 3)
    sums = _named(compute_cost_sums(builder.graph(), [2])[0])
    assert sums["batch"] == 2
    assert sums["operators"] == sums["flops"] == sums["roofline_ms"] == 0


def test_a_batch_of_nothing_is_refused(graph):
    with pytest.raises(UsageError, match="batch"):
        compute_cost_sums(graph, [0])
