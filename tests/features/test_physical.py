"""Classes of operators stand for all of them exactly, and features are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.features.physical import COLUMNS, PhysicalPlan, PhysicalSamples
from dippm.graph import Graph, OpKind

_SQUARE = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


def _chain(builder: Any, *, layers: int) -> Graph:
    """Convolution, batch norm and ReLU, over and over; then a view and a linear layer."""
    n = builder.N
    x = builder.input(n, 32, 28, 28)
    for _ in range(layers):
        x = builder.node(OpKind.CONV, [x, builder.weight(32, 32, 3, 3)], n, 32, 28, 28, **_SQUARE)
        x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(32), builder.weight(32)], n, 32, 28, 28, axes_size=32)
        x = builder.node(OpKind.RELU, [x], n, 32, 28, 28)
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 32, 1, 1, output_size=(1, 1))
    x = builder.node(OpKind.VIEW, [x], n, 32, alias_of=x, function="view")
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 32)], n, 10))


def _at(plan: PhysicalPlan, *batches: int, device: str = "RTX 3090", **conditions: Any) -> PhysicalSamples:
    return plan.at(
        batches,
        device=find_device(device),
        conditions=Conditions(**conditions),
        rates=Rates(),
        kernels=load_kernel_model(),
    )


def _column(sample: PhysicalSamples, name: str) -> np.ndarray:
    return sample.node_features[:, :, COLUMNS.index(name)]


def test_repeated_blocks_are_one_class_and_all_are_counted(builder: Any) -> None:
    graph = _chain(builder, layers=12)
    plan = PhysicalPlan.from_graph(graph, Precision.AMP)
    operators = len(graph.nodes) - 1
    assert plan.count.sum() == operators
    # What sees an end within two steps is a class of its own, all others are alike.
    assert sorted(plan.count) == [*[1.0] * 7, 10.0, 10.0, 11.0]


def test_targets_of_messages_ascend(builder: Any) -> None:
    plan = PhysicalPlan.from_graph(_chain(builder, layers=3), Precision.FP32)
    for messages in (plan.producers, plan.consumers):
        assert (np.diff(messages.target) >= 0).all()
        sums = np.bincount(messages.target, messages.weight)
        assert sums[sums > 0] == pytest.approx(1.0)


def test_views_are_in_no_class(builder: Any) -> None:
    graph = _chain(builder, layers=1)
    plan = PhysicalPlan.from_graph(graph, Precision.FP32)
    is_view = np.array([node.kind is OpKind.VIEW for node in graph.nodes])
    assert ((plan.class_of < 0) == is_view).all()


@pytest.mark.parametrize("device", ["A100", "P4", "RTX 4090"])
def test_features_are_finite_and_kernel_times_positive(builder: Any, device: str) -> None:
    plan = PhysicalPlan.from_graph(_chain(builder, layers=2), Precision.AMP)
    sample = _at(plan, 1, 64, device=device, precision=Precision.AMP)
    assert sample.node_features.shape == (2, len(plan.node), len(COLUMNS))
    assert np.isfinite(sample.node_features).all()
    assert (sample.kernel_ms > 0).all()
    small, large = sample.kernel_ms @ plan.count
    assert large > 2 * small


def test_layout_and_mode_are_inputs(builder: Any) -> None:
    plan = PhysicalPlan.from_graph(_chain(builder, layers=1), Precision.AMP)
    nchw, nhwc = (_at(plan, 8, precision=Precision.AMP, layout=layout) for layout in (Layout.NCHW, Layout.NHWC))
    assert not _column(nchw, "nhwc").any()
    assert _column(nhwc, "nhwc").all()
    is_convolution = _column(nhwc, "is_conv") == 1
    assert (_column(nhwc, "nhwc_convolution") == is_convolution).all()
    assert _column(_at(plan, 8, mode=Mode.TRAINING), "training").all()


def test_a_training_step_has_all_phases_and_its_own_precision(builder: Any) -> None:
    settings = TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.AMP, accumulation=3)
    training = make_training_graph(_chain(builder, layers=2), settings)
    plan = PhysicalPlan.from_graph(training, Precision.AMP)
    sample = _at(plan, 8, precision=Precision.AMP, mode=Mode.TRAINING)
    for phase in ("in_forward", "in_backward", "in_optimizer"):
        assert _column(sample, phase).any()
    is_optimizer = _column(sample, "in_optimizer")[0] == 1
    assert (plan.count[is_optimizer] == np.bincount(plan.class_of[plan.class_of >= 0])[is_optimizer]).all()
    assert plan.count.sum() == training.times[plan.class_of >= 0].sum()
    # The casts of autocast are nodes of the step, none are added to it.
    assert (plan.launches == 1).all()


def test_gradients_are_like_what_they_are_the_gradients_of(builder: Any) -> None:
    training = make_training_graph(_chain(builder, layers=1), TrainingSettings())
    plan = PhysicalPlan.from_graph(training, Precision.FP32)
    sample = _at(plan, 1, mode=Mode.TRAINING)
    is_gradient = _column(sample, "is_norm_grad")[0] == 1
    assert is_gradient.any()
    assert (_column(sample, "is_batch_norm")[0][is_gradient] == 1).all()


def test_interpolation_of_small_images_takes_one_thread_per_pixel(new_builder: Any) -> None:
    def resize_ms(mode: str, batch: int) -> float:
        builder = new_builder()
        x = builder.input(builder.N, 512, 7, 7)
        graph = builder.graph(builder.node(OpKind.RESIZE, [x], builder.N, 512, 14, 14, mode=mode))
        return float(_at(PhysicalPlan.from_graph(graph, Precision.AMP), batch).kernel_ms[0, 0])

    # EfficientFormerV2-S0 at batch 1024: two resizes of 512 channels, nearly all of its 754 ms (timm's table).
    assert resize_ms("linear", 1024) == pytest.approx(377, rel=0.15)
    assert resize_ms("nearest", 1024) < 5
    assert resize_ms("linear", 512) == pytest.approx(resize_ms("linear", 1024) / 2, rel=0.05)


def test_transposed_tokens_and_gradients_interpolate_in_parallel(builder: Any) -> None:
    n = builder.N
    tokens = builder.node(OpKind.RELU, [builder.input(n, 49, 512)], n, 49, 512)
    turned = builder.node(OpKind.VIEW, [tokens], n, 512, 49, alias_of=tokens, function="transpose")
    image = builder.node(OpKind.VIEW, [turned], n, 512, 7, 7, alias_of=tokens, function="view")
    graph = builder.graph(builder.node(OpKind.RESIZE, [image], n, 512, 14, 14, mode="linear"))
    assert _at(PhysicalPlan.from_graph(graph, Precision.AMP), 1024).kernel_ms.sum() < 5


def test_gradients_of_interpolation_have_a_thread_per_element(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.MUL, [builder.input(n, 512, 14, 14), builder.weight(512, 1, 1)], n, 512, 14, 14)
    x = builder.node(OpKind.RESIZE, [x], n, 512, 7, 7, mode="linear")
    step = make_training_graph(builder.graph(x), TrainingSettings())
    plan = PhysicalPlan.from_graph(step, Precision.FP32)
    sample = _at(plan, 1024, mode=Mode.TRAINING)
    is_resize = _column(sample, "is_resize")[0] == 1
    is_backward = _column(sample, "in_backward")[0] == 1
    assert (is_resize & is_backward).any()
    slow, fast = (sample.kernel_ms[0][is_resize & chosen].max() for chosen in (~is_backward, is_backward))
    assert slow > 50 * fast
