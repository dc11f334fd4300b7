"""Features are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Layout, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.features.physical import COLUMNS, PhysicalPlan
from dippm.graph import OpKind


@pytest.mark.parametrize("device", ["A100", "P4", "RTX 4090"])
def test_features_are_finite_and_kernel_times_positive(chain: Any, at: Any, device: str) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=2), Precision.AMP)
    sample = at(plan, 1, 64, device=device, precision=Precision.AMP)
    assert sample.node_features.shape == (2, len(plan.node), len(COLUMNS))
    assert np.isfinite(sample.node_features).all()
    assert (sample.kernel_ms > 0).all()
    small, large = sample.kernel_ms @ plan.count
    assert large > 2 * small


def test_static_features_that_are_equal_have_one_number(chain: Any) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=3), Precision.AMP)
    number = plan.static_number
    assert len(np.unique(plan.static, axis=0)) == number.max() + 1 < len(number)
    assert all(
        (plan.static[number == each] == plan.static[number == each][0]).all() for each in range(number.max() + 1)
    )


def test_layout_and_mode_are_inputs(chain: Any, at: Any, column: Any) -> None:
    plan = PhysicalPlan.from_graph(chain(layers=1), Precision.AMP)
    nchw, nhwc = (at(plan, 8, precision=Precision.AMP, layout=layout) for layout in (Layout.NCHW, Layout.NHWC))
    assert not column(nchw, "nhwc").any()
    assert column(nhwc, "nhwc").all()
    assert not column(nchw, "channels_last").any()
    assert (column(nhwc, "channels_last") == (column(nhwc, "is_linear") == 0)).all()
    is_convolution = column(nhwc, "is_conv") == 1
    assert (column(nhwc, "channels_last_convolution") == is_convolution).all()
    assert column(at(plan, 8, mode=Mode.TRAINING), "training").all()


@pytest.mark.parametrize(
    ("channels", "precision", "is_split"),
    [(512, Precision.AMP, [1, 1]), (664, Precision.AMP, [1, 0]), (664, Precision.FP32, [0, 0])],
)
def test_convolutions_that_are_run_by_group_are_marked(
    channels: int, precision: Precision, is_split: list[int], builder: Any, at: Any, column: Any
) -> None:
    n, square = builder.N, {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 8}
    image = builder.input(n, channels, 8, 8)
    x = builder.node(OpKind.CONV, [image, builder.weight(channels, channels // 8, 3, 3)], n, channels, 8, 8, **square)
    graph = builder.graph(builder.node(OpKind.RELU, [x], n, channels, 8, 8))
    plan = PhysicalPlan.from_graph(graph, precision)
    marked = column(at(plan, 3, 4, precision=precision), "is_split")
    assert marked.T.tolist() == [is_split, [0, 0]]


def test_a_training_step_has_all_phases_and_its_own_precision(chain: Any, at: Any, column: Any) -> None:
    settings = TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.AMP, accumulation=3)
    training = make_training_graph(chain(layers=2), settings)
    plan = PhysicalPlan.from_graph(training, Precision.AMP)
    sample = at(plan, 8, precision=Precision.AMP, mode=Mode.TRAINING)
    for phase in ("in_forward", "in_backward", "in_optimizer"):
        assert column(sample, phase).any()
    is_optimizer = column(sample, "in_optimizer")[0] == 1
    assert (plan.count[is_optimizer] == np.bincount(plan.class_of[plan.class_of >= 0])[is_optimizer]).all()
    assert plan.count.sum() == training.times[plan.class_of >= 0].sum()
    # The casts of autocast are nodes of the step, none are added to it.
    assert (plan.launches == 1).all()
