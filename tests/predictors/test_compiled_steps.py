"""Compiled training steps take over by what networks change the eager ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer, Runtime
from dippm.costs.device_time import busy_ms
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device
from dippm.graph import Graph, OpKind
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.compiled_steps import eager_conditions, time_compiled_steps
from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs

STEP = Conditions(precision=Precision.AMP, mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM, runtime=Runtime.COMPILE)
KNOWN = find_device("RTX 3090")


def stacked(builder: Any, groups: int) -> Graph:
    """Three convolutions of many channels with ReLU between; those in groups are not turned."""
    one = type(builder)()
    n, channels = one.N, 256
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    x = one.input(n, channels, 28, 28)
    for _ in range(3):
        x = one.node(OpKind.CONV, [x, one.weight(channels, channels // groups, 3, 3)], n, channels, 28, 28, **square)
        x = one.node(OpKind.RELU, [x], n, channels, 28, 28)
    return one.graph()


def prepare(graphs: list[Graph], conditions: Conditions = STEP) -> PreparedGraphs:
    compiled = CompiledGraphs.of(graphs, conditions, DEFAULT_SOFTWARE)
    return PreparedGraphs.of(compiled, batches=[16, 64], conditions=conditions)


def time_of(graphs: list[Graph], conditions: Conditions = STEP) -> list[Any]:
    ((*result,),) = time_compiled_steps(
        prepare(graphs, conditions),
        [KNOWN],
        rates=rates(),
        kernels=load_kernel_model(),
        networks=AdditivePredictor.load(),
    )
    return result


def rates() -> Any:
    return Calibration.read(TRAINING_ARTEFACT_PATH).rates


def summed(prepared: PreparedGraphs, conditions: Conditions) -> Any:
    """The plain sum of a step, [B, n_nodes]."""
    (result,) = busy_ms(
        prepared.compiled.plan, prepared.at, devices=[KNOWN], conditions=conditions, rates=rates(),
        kernels=load_kernel_model(),
    )  # fmt: skip
    return result * prepared.compiled.times


def test_the_eager_step_is_asked_for_in_the_layout_that_the_compiler_runs() -> None:
    assert eager_conditions(STEP, is_turned=False) == Conditions(
        precision=Precision.AMP, mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM
    )
    turned = eager_conditions(STEP, is_turned=True)
    assert (turned.layout, turned.runtime) == (Layout.NHWC, Runtime.EAGER)


def test_without_networks_it_is_the_sum_of_what_fusion_leaves(builder: Any) -> None:
    graph, conditions = stacked(builder, 1), replace(STEP, precision=Precision.FP32)
    (breakdown,) = time_of([graph], conditions)
    assert breakdown.busy_ms == pytest.approx(summed(prepare([graph], conditions), conditions))


@pytest.mark.parametrize(("groups", "layout"), [(1, Layout.NHWC), (32, Layout.NCHW)])
def test_convolutions_and_what_follows_them_are_corrected_alike(builder: Any, groups: int, layout: Layout) -> None:
    graph = stacked(builder, groups)
    prepared, eager = (
        prepare([graph]),
        Conditions(precision=Precision.AMP, mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM, layout=layout),
    )
    assert bool(prepared.compiled.plan.is_turned[0]) == (layout is Layout.NHWC)
    (breakdown,) = time_of([graph])
    plain = summed(prepared, STEP)
    factor = breakdown.busy_ms.sum(axis=1) / plain.sum(axis=1)
    assert breakdown.busy_ms == pytest.approx(plain * factor[:, None])
    assert np.all(np.abs(factor - 1.0) > 1e-3)
    step = prepare([graph], eager)
    networks = AdditivePredictor.load()
    (corrected,) = networks.break_down_kernels(step.compiled.physical, step.at, KNOWN, eager, host=rates())
    expected = corrected.busy_ms.sum(axis=1) / summed(step, eager).sum(axis=1)
    assert factor == pytest.approx(expected, rel=1e-6)


PRODUCTS = (OpKind.LINEAR, OpKind.MATMUL, OpKind.ATTENTION, OpKind.ATTENTION_GRAD)


def attending(builder: Any, depth: int) -> Graph:
    """Linear layers with GELU and attention of eight heads to itself between."""
    one = type(builder)()
    n, length, width = one.N, 64, 512
    x = one.input(n, 8, length, width)
    for _ in range(depth):
        x = one.node(OpKind.LINEAR, [x, one.weight(width, width), one.weight(width)], n, 8, length, width)
        x = one.node(OpKind.GELU, [x], n, 8, length, width)
        x = one.node(OpKind.ATTENTION, [x, x, x], n, 8, length, width, is_causal=False, has_dropout=False)
    return one.graph()


def in_parts(graph: Graph, conditions: Conditions, *, is_turned: bool) -> tuple[Any, Any, Any]:
    """By what the networks change the eager step's time: of all of it, [B], its products and all else, [B, 1] each."""
    eager = eager_conditions(conditions, is_turned=is_turned)
    step, networks = prepare([graph], eager), AdditivePredictor.load()
    (corrected,) = networks.break_down_kernels(step.compiled.physical, step.at, KNOWN, eager, host=rates())
    eagerly, is_product = summed(step, eager), step.compiled.plan.work.sizes.is_kind(*PRODUCTS)
    whole = corrected.busy_ms.sum(axis=1) / eagerly.sum(axis=1)
    parts = np.ones_like(eagerly)
    for part in (is_product, ~is_product):
        if part.any():
            factor = corrected.busy_ms[:, part].sum(axis=1) / eagerly[:, part].sum(axis=1)
            parts[:, part] = factor[:, None]
    return whole, parts, is_product


def test_products_and_all_other_operators_are_corrected_by_factors_of_their_own(builder: Any) -> None:
    graphs = [attending(builder, 4), stacked(builder, 1), attending(builder, 3)]
    prepared = prepare(graphs)
    breakdowns, plain = time_of(graphs), summed(prepared, STEP)
    turned = prepared.compiled.plan.is_turned
    for graph, breakdown, member, is_turned in zip(graphs, breakdowns, prepared.compiled.members, turned, strict=True):
        _, parts, is_product = in_parts(graph, STEP, is_turned=bool(is_turned))
        assert breakdown.busy_ms == pytest.approx(plain[:, member.nodes] * parts)
        if is_product.any():
            assert np.all(np.abs(parts[:, is_product][:, 0] / parts[:, ~is_product][:, 0] - 1.0) > 0.02)


def test_steps_in_pure_16_bits_are_changed_as_a_whole_where_that_makes_them_faster(builder: Any) -> None:
    conditions, changed = replace(STEP, precision=Precision.FP16), []
    for graph in (attending(builder, 4), stacked(builder, 1), stacked(builder, 32)):
        prepared = prepare([graph], conditions)
        ((breakdown,), plain) = time_of([graph], conditions), summed(prepared, conditions)
        whole, parts, _ = in_parts(graph, conditions, is_turned=bool(prepared.compiled.plan.is_turned[0]))
        assert breakdown.busy_ms == pytest.approx(plain * np.where(whole[:, None] < 1.0, parts, 1.0))
        changed += (whole < 1.0).tolist()
    assert {*changed} == {False, True}


def test_graphs_of_both_layouts_are_timed_together_as_alone(builder: Any) -> None:
    graphs = [stacked(builder, groups) for groups in (1, 32, 1)]
    together = time_of(graphs)
    for graph, breakdown in zip(graphs, together, strict=True):
        (alone,) = time_of([graph])
        assert breakdown.latency_ms == pytest.approx(alone.latency_ms, rel=1e-9)


def test_compiling_saves_nothing_of_the_blocks_of_a_batch_norm(builder: Any) -> None:
    n, few, attributes = builder.N, 16, {"is_training": True}
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, few, 112, 112)
    for _ in range(3):
        x = builder.node(OpKind.CONV, [x, builder.weight(few, few, 3, 3)], n, few, 112, 112, **square)
        weight = builder.weight(few)
        x = builder.node(OpKind.BATCH_NORM, [x, weight, weight], n, few, 112, 112, **attributes)
    graph = builder.graph()
    kernels, networks = load_kernel_model(), AdditivePredictor.load()

    def compiled_ms(cycles: float) -> Any:
        given = replace(rates(), batch_norm_cycles=cycles)
        ((breakdown,),) = time_compiled_steps(
            prepare([graph]), [KNOWN], rates=given, kernels=kernels, networks=networks
        )
        return breakdown.busy_ms

    def eager_ms(cycles: float) -> Any:
        eager = replace(STEP, runtime=Runtime.EAGER)
        given, step = replace(rates(), batch_norm_cycles=cycles), prepare([graph], eager)
        (result,) = busy_ms(
            step.compiled.plan, step.at, devices=[KNOWN], conditions=eager, rates=given, kernels=kernels
        )
        return result.sum()

    assert eager_ms(5.0) > 1.5 * eager_ms(0.0)
    assert compiled_ms(5.0) == pytest.approx(compiled_ms(0.0))
