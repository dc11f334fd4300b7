"""Products with quantised weights: they are unpacked before each product, in both passes, and trained by nobody."""

from __future__ import annotations

from typing import Any

import pytest

import dippm
from dippm.costs import MemoryTimeline, Precision, Workload, live_memory
from dippm.costs.conditions import LowRankAdapters
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.errors import UnsupportedError
from dippm.graph import DType, Graph, OpKind


def _network(builder: Any, kind: OpKind = OpKind.LINEAR) -> Graph:
    n = builder.N
    x = builder.input(n, 8, 64)
    for _ in range(3):
        shape = (256, 64) if kind is OpKind.LINEAR else (64, 256)
        y = builder.node(kind, [x, builder.weight(*shape)], n, 8, 256)
        y = builder.node(OpKind.GELU, [y], n, 8, 256)
        x = builder.node(kind, [y, builder.weight(*shape[::-1])], n, 8, 64)
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 64)], n, 8, 10))


def _step(graph: Graph, weights: str | None = "nf4", **given: Any) -> TrainingGraph:
    graph = graph if weights is None else dippm.load(graph, weights=weights)
    settings = TrainingSettings(precision=Precision.BF16, adapters=LowRankAdapters(rank=4), **given)
    return make_training_graph(graph, settings)


@pytest.mark.parametrize("kind", [OpKind.LINEAR, OpKind.MATMUL])
def test_a_weight_is_unpacked_in_both_passes(builder: Any, kind: OpKind) -> None:
    step = _step(_network(builder, kind))
    tensors = step.graph.tensors
    unpacked = [
        (phase, node)
        for node, phase in zip(step.graph.nodes, step.phase.tolist(), strict=True)
        if node.kind is OpKind.DEQUANTIZE
    ]
    # Six layers on the way forth; on the way back the first layer hands no gradient on.
    assert [phase for phase, _ in unpacked] == [Phase.FORWARD] * 6 + [Phase.BACKWARD] * 5
    for _, node in unpacked:
        weight, scales = node.inputs
        assert (tensors[weight].dtype, tensors[scales].dtype) == (DType.UINT4, DType.UINT8)
        assert tensors[node.outputs[0]].dtype is DType.BFLOAT16
        assert tensors[node.outputs[0]].shape == tensors[weight].shape


def test_an_unpacked_weight_lives_for_its_product_alone(builder: Any) -> None:
    step = _step(_network(builder))
    released = {index: position for position, node in enumerate(step.graph.nodes) for index in node.releases}
    for position, node in enumerate(step.graph.nodes):
        if node.kind is OpKind.DEQUANTIZE:
            readers = [at for at, other in enumerate(step.graph.nodes) if node.outputs[0] in other.inputs]
            assert readers == [position + 1]
            # In the backward pass an operator's own results live until its last node.
            assert released[node.outputs[0]] >= position + 1
            assert step.graph.nodes[released[node.outputs[0]]].scope == node.scope


def test_multiply_accumulates_are_those_of_whole_weights_and_memory_is_less(builder: Any) -> None:
    graph = _network(builder)
    figures = []
    for weights in (None, "nf4"):
        step = _step(graph, weights)
        work = Workload.from_graph(step.graph, step.precision)
        figures.append((work.at([3]).macs.sum(), live_memory(MemoryTimeline.from_workload(work), [3]).weight_bytes[0]))
    (macs, whole), (same, packed) = figures
    assert macs == same
    # Six layers of 64 x 256 weights, of 16 bits and of 4 with half a bit of scales.
    assert whole - packed == 6 * 64 * 256 * (16 - 4.5) / 8


@pytest.mark.parametrize("weights", ["nf4", "int8", "fp8"])
def test_quantised_weights_are_not_trained(builder: Any, weights: str) -> None:
    graph = dippm.load(_network(builder), weights=weights)
    with pytest.raises(UnsupportedError, match="lora") as caught:
        make_training_graph(graph, TrainingSettings())
    assert caught.value.code == "training.quantised"
