"""What weights alone take to come from memory, and that no time is shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device, load_catalog
from dippm.graph import Graph, OpKind
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs

_WIDTH = 16_384


@pytest.fixture(name="layers")
def _layers(builder: Any) -> Graph:
    """Four linear layers of 512 MiB each in 16 bits, more than any cache holds."""
    x = builder.input(builder.N, _WIDTH)
    for _ in range(4):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(_WIDTH, _WIDTH)], builder.N, _WIDTH)
    return builder.graph()


def test_each_weight_counts_where_it_is_read_first_but_for_what_the_cache_keeps(builder: Any) -> None:
    n, tied = builder.N, builder.weight(_WIDTH, _WIDTH)
    x = builder.node(OpKind.RELU, [builder.input(n, _WIDTH)], n, _WIDTH)
    for _ in range(2):
        x = builder.node(OpKind.LINEAR, [x, tied], n, _WIDTH)
    builder.node(OpKind.LINEAR, [x, builder.weight(64, _WIDTH)], n, 64)
    graph, conditions, device = builder.graph(), Conditions.parse(precision="bf16"), find_device("L4")
    compiled = CompiledGraphs.of([graph, graph], conditions, DEFAULT_SOFTWARE)
    weights = PreparedGraphs.of(compiled, batches=[1, 8], conditions=conditions).weights
    large, small = 2.0 * _WIDTH**2, 2.0 * 64 * _WIDTH
    assert weights.bytes_of_nodes.tolist() == [2 * [0.0, large, 0.0, small]] * 2
    uncached = 1.0 - device.l2_mb * 2**20 / (large + small)
    ms_per_byte = uncached / (device.bandwidth_gb_s * 1e9) * 1e3
    of_graph = [0.0, large * ms_per_byte, 0.0, small * ms_per_byte]
    assert weights.least_ms(device) == pytest.approx(np.array([of_graph * 2] * 2))


def test_weights_that_the_cache_holds_take_no_time(builder: Any) -> None:
    builder.node(OpKind.LINEAR, [builder.input(builder.N, 64), builder.weight(64, 64)], builder.N, 64)
    conditions = Conditions.parse()
    compiled = CompiledGraphs.of([builder.graph()], conditions, DEFAULT_SOFTWARE)
    weights = PreparedGraphs.of(compiled, batches=[1], conditions=conditions).weights
    assert weights.least_ms(find_device("A100")).tolist() == [[0.0]]


@pytest.mark.parametrize(("layers", "kept"), [(1, 1.0), (3, 0.5), (4, 0.0), (9, 0.0)])
def test_a_cache_that_is_read_through_in_turns_keeps_less_the_more_passes_it(
    builder: Any, layers: int, kept: float
) -> None:
    device = find_device("L4")
    x, width = builder.input(builder.N, 1), int(device.l2_mb * 2**20 / 2 / 2)
    for _ in range(layers):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1, width)], builder.N, 1)
    conditions = Conditions.parse(precision="bf16")
    compiled = CompiledGraphs.of([builder.graph()], conditions, DEFAULT_SOFTWARE)
    weights = PreparedGraphs.of(compiled, batches=[1], conditions=conditions).weights
    whole_ms = layers * 2.0 * width / (0.9 * device.bandwidth_gb_s * 1e9) * 1e3
    cached_ms = kept * device.l2_mb * 2**20 / (0.9 * device.bandwidth_gb_s * 1e9) * 1e3
    assert weights.likely_ms(device).sum() == pytest.approx(max(whole_ms - cached_ms, 0.0), rel=1e-6)


@pytest.mark.parametrize("runtime", ["eager", "cuda-graph", "compile"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_no_call_is_shorter_than_its_weights_take_on_any_card(layers: Graph, precision: str, runtime: str) -> None:
    conditions = Conditions.parse(precision=precision, runtime=runtime)
    needs = (8, 0) if precision == "bf16" else (7, 0)
    cards = [card for card in load_catalog() if card.compute_capability >= needs]
    answers = PhysicsPredictor.load().predict(layers, batches=[1], devices=cards, conditions=conditions)
    for card, answer in zip(cards, answers, strict=True):
        uncached = 4 * 2.0 * _WIDTH**2 - card.l2_mb * 2**20
        assert answer.latency_ms >= uncached / (card.bandwidth_gb_s * 1e9) * 1e3 * (1 - 1e-9), card.name
        low, high = answer.intervals["latency_ms"]
        assert low <= answer.latency_ms < high
