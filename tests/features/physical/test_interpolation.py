"""Interpolating kernels run one thread per pixel, most of them."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.features.physical import PhysicalPlan
from dippm.graph import OpKind


def test_interpolation_of_small_images_takes_one_thread_per_pixel(at: Any, new_builder: Any) -> None:
    def resize_ms(mode: str, batch: int) -> float:
        builder = new_builder()
        x = builder.input(builder.N, 1024, 7, 7)
        graph = builder.graph(builder.node(OpKind.RESIZE, [x], builder.N, 1024, 14, 14, mode=mode))
        return float(at(PhysicalPlan.from_graph(graph, Precision.AMP), batch).kernel_ms[0, 0])

    # EfficientFormerV2-S0 at batch 1024: two resizes of 1,024 channels, most of its 754 ms (timm's table).
    assert resize_ms("linear", 1024) == pytest.approx(350, rel=0.1)
    assert resize_ms("nearest", 1024) < 10
    assert resize_ms("linear", 512) == pytest.approx(resize_ms("linear", 1024) / 2, rel=0.05)


def test_transposed_tokens_and_gradients_interpolate_in_parallel(at: Any, builder: Any) -> None:
    n = builder.N
    tokens = builder.node(OpKind.RELU, [builder.input(n, 49, 512)], n, 49, 512)
    turned = builder.node(OpKind.VIEW, [tokens], n, 512, 49, alias_of=tokens, function="transpose")
    image = builder.node(OpKind.VIEW, [turned], n, 512, 7, 7, alias_of=tokens, function="view")
    graph = builder.graph(builder.node(OpKind.RESIZE, [image], n, 512, 14, 14, mode="linear"))
    assert at(PhysicalPlan.from_graph(graph, Precision.AMP), 1024).kernel_ms.sum() < 5


def test_gradients_of_interpolation_have_a_thread_per_element(at: Any, column: Any, builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.MUL, [builder.input(n, 512, 14, 14), builder.weight(512, 1, 1)], n, 512, 14, 14)
    x = builder.node(OpKind.RESIZE, [x], n, 512, 7, 7, mode="linear")
    step = make_training_graph(builder.graph(x), TrainingSettings())
    plan = PhysicalPlan.from_graph(step, Precision.FP32)
    sample = at(plan, 1024, mode=Mode.TRAINING)
    is_resize = column(sample, "is_resize")[0] == 1
    is_backward = column(sample, "in_backward")[0] == 1
    assert (is_resize & is_backward).any()
    slow, fast = (sample.kernel_ms[0][is_resize & chosen].max() for chosen in (~is_backward, is_backward))
    assert slow > 50 * fast
