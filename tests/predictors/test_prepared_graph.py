"""A graph laid out once holds for other layouts, and knows what a device can compute with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.host import CAST_DISPATCH_US
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.devices import find_device
from dippm.graph import CONTRACTION_KINDS, DType, Graph, OpKind
from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 64)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(10, 64)], builder.N, 10)
    builder.node(OpKind.RELU, [x], builder.N, 10)
    return builder.graph()


def test_it_is_kept_for_other_layouts_and_not_for_other_software(graph: Graph) -> None:
    compiled = CompiledGraphs.of([graph], Conditions.parse(precision="amp"), DEFAULT_SOFTWARE)
    assert compiled.is_for([graph], Conditions.parse(precision="amp", layout="nhwc"), DEFAULT_SOFTWARE)
    assert not compiled.is_for([graph], Conditions.parse(precision="fp32"), DEFAULT_SOFTWARE)
    assert not compiled.is_for([graph], Conditions.parse(precision="amp"), Software(torch=(1, 12)))
    assert not compiled.is_for([replace(graph)], Conditions.parse(precision="amp"), DEFAULT_SOFTWARE)
    assert not compiled.is_for([graph, graph], Conditions.parse(precision="amp"), DEFAULT_SOFTWARE)
    assert compiled.is_of({OpKind.RELU}).tolist() == [node.kind is OpKind.RELU for node in graph.nodes]


def test_work_grows_with_the_batch(graph: Graph) -> None:
    conditions = Conditions.parse(precision="bf16")
    prepared = PreparedGraphs.of(
        CompiledGraphs.of([graph], conditions, DEFAULT_SOFTWARE), batches=[1, 8], conditions=conditions
    )
    assert prepared.macs == ((640, 5120),)
    assert np.all(prepared.traffic_bytes[1] > prepared.traffic_bytes[0])
    (member,) = prepared.compiled.members
    assert (member.has_format(find_device("A100")), member.has_format(find_device("T4"))) == (True, False)
    for device, is_on_tensor in (("A100", True), ("P100", False)):
        work = prepared.work_on(find_device(device))
        assert np.array_equal(work.plain_flops + work.tensor_flops, prepared.at.flops)
        assert (work.tensor_flops > 0).any() == is_on_tensor


@pytest.mark.parametrize(("precision", "times"), [("tf32", 2.0), ("bf16", 1.0)])
def test_work_on_tensor_cores_counts_as_so_much_of_fp16(graph: Graph, precision: str, times: float) -> None:
    conditions = Conditions.parse(precision=precision)
    prepared = PreparedGraphs.of(
        CompiledGraphs.of([graph], conditions, DEFAULT_SOFTWARE), batches=[8], conditions=conditions
    )
    tensor = prepared.work_on(find_device("A100")).tensor_flops
    products = np.array([node.kind in CONTRACTION_KINDS for node in graph.nodes])
    assert products.any()
    assert tensor[0, products] == pytest.approx(times * prepared.at.flops[0, products])


def test_work_of_convolutions(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 3, 32, 32)
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 3, 3, 3)], n, 64, 16, 16, stride=(2, 2), padding=(1, 1))
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 1, 3, 3)], n, 64, 16, 16, groups=64, padding=(1, 1))
    x = builder.node(OpKind.RELU, [x], n, 64, 16, 16)
    conditions = Conditions.parse(precision="fp16")
    compiled = CompiledGraphs.of([builder.graph()], conditions, DEFAULT_SOFTWARE)
    prepared = PreparedGraphs.of(compiled, batches=[1, 8], conditions=conditions)
    work = prepared.work_on(find_device("A100"))
    numbers = 64 * 16 * 16
    assert work.results.tolist() == [[numbers, numbers, 0], [8 * numbers, 8 * numbers, 0]]
    assert (work.tensor_flops > 0.0).tolist() == [[True, False, True]] * 2
    assert (work.plain_flops > 0.0).tolist() == [[False, True, False]] * 2
    (step,) = (
        PreparedGraphs.of(CompiledGraphs.of([builder.graph()], asked, DEFAULT_SOFTWARE), batches=[8], conditions=asked)
        for asked in [Conditions.parse(precision="amp", mode="training", optimizer="sgd")]
    )
    own = step.work_on(find_device("A100"))
    is_gradient = step.compiled.plan.work.sizes.is_kind(OpKind.CONV_WEIGHT_GRAD)
    assert own.results[0, is_gradient].tolist() == [8 * numbers, 8 * numbers]
    assert sorted((own.tensor_flops[0, is_gradient] > 0.0).tolist()) == [False, True]
    own = work.take(slice(1, 3))
    assert np.array_equal(own.results, work.results[:, 1:])
    assert np.array_equal(own.plain_flops, work.plain_flops[:, 1:])


def test_each_weight_of_a_product_is_read_once_and_nothing_else_is(builder: Any) -> None:
    n = builder.N
    tied, table = builder.weight(64, 64), builder.weight(1000, 64)
    x = builder.node(OpKind.EMBEDDING, [table, builder.input(n, dtype=DType.INT64)], n, 64)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, tied], n, 64)
    builder.node(OpKind.LINEAR, [x, builder.weight(10, 64), builder.weight(10)], n, 10)
    graph = builder.graph()
    for precision, element_bytes in (("fp32", 4), ("amp", 4), ("bf16", 2)):
        conditions = Conditions.parse(precision=precision)
        compiled = CompiledGraphs.of([graph, graph], conditions, DEFAULT_SOFTWARE)
        prepared = PreparedGraphs.of(compiled, batches=[1, 8], conditions=conditions)
        for weight_bytes in prepared.weights.bytes_of_graphs:
            assert weight_bytes.tolist() == [element_bytes * (64 * 64 + 10 * 64 + 10)] * 2


def test_what_autocast_keeps_no_copies_of_counts_once_for_each_graph(new_builder: Any, graph: Graph) -> None:
    builder = new_builder()
    n = builder.N
    tied, half = builder.weight(64, 64), builder.weight(64, 64, dtype=DType.FLOAT16)
    turned = builder.node(OpKind.VIEW, [tied], 64, 64, alias_of=tied)
    x = builder.input(n, 64)
    for weight in (tied, half, turned, tied):
        x = builder.node(OpKind.LINEAR, [x, weight], n, 64)
    # A norm reads its weights in FP32.
    builder.node(OpKind.LAYER_NORM, [x, builder.weight(64)], n, 64)
    other = builder.graph()
    for precision, software, expected in (
        ("amp", Software(torch=(2, 11)), [2 * 640, 2 * 64 * 64]),
        ("amp", Software(torch=(2, 10)), [0, 0]),
        ("fp16", Software(torch=(2, 11)), [0, 0]),
    ):
        compiled = CompiledGraphs.of([graph, other], Conditions.parse(precision=precision), software)
        assert [member.uncached_mb * 2**20 for member in compiled.members] == expected
    # The tied weight is cast for each of its three readers, and each cast is a kernel.
    today, before = (
        CompiledGraphs.of([other], Conditions.parse(precision="amp"), Software(torch=(2, minor))) for minor in (11, 10)
    )
    assert today.plan.dispatch_us.sum() == pytest.approx(before.plan.dispatch_us.sum() + 2 * CAST_DISPATCH_US)


def test_each_of_several_graphs_has_figures_of_its_own(graph: Graph) -> None:
    conditions = Conditions.parse(precision="amp")
    first, second = replace(graph, nodes=graph.nodes[:1], source="first"), replace(graph, source="second")
    compiled = CompiledGraphs.of([first, second], conditions, DEFAULT_SOFTWARE)
    assert [member.model.source for member in compiled.members] == ["first", "second"]
    assert [member.model.parameters for member in compiled.members] == [640, 640]
    assert [member.nodes for member in compiled.members] == [slice(0, 1), slice(1, 3)]
    assert [member.kinds for member in compiled.members] == [{OpKind.LINEAR}, {OpKind.LINEAR, OpKind.RELU}]
    prepared = PreparedGraphs.of(compiled, batches=[8], conditions=conditions)
    assert prepared.macs == ((5120,), (5120,))
    assert prepared.inputs[0] == prepared.inputs[1] == ({graph.tensors[0].name: (8, 64)},)
    (moved,) = prepared.traffic_bytes
    assert moved[:1].sum() < moved[1:].sum()
    # Casts count with the graph whose they are.
    alone = CompiledGraphs.of([second], conditions, DEFAULT_SOFTWARE)
    of_alone = PreparedGraphs.of(alone, batches=[8], conditions=conditions).traffic_bytes
    assert np.array_equal(moved[1:], of_alone[0])
