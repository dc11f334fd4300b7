"""Interpolating kernels run one thread per pixel, most of them."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.device_time import busy_ms
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.features.physical import PhysicalPlan
from dippm.graph import OpKind
from dippm.predictors.calibration import Calibration


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


@pytest.mark.parametrize(("layout", "is_slow"), [("nchw", True), ("nhwc", False)])
def test_planes_have_one_law(layout: str, is_slow: bool, new_builder: Any) -> None:
    """Where the plain sum has a law of planes, features take its time, and that of channels last as it is."""
    builder, device = new_builder(), find_device("H100")
    n, square = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = [builder.input(n, 64, 14, 14), builder.weight(512, 64, 1, 1)]
    x = builder.node(OpKind.CONV, x, n, 512, 14, 14, **square)
    graph = builder.graph(builder.node(OpKind.RESIZE, [x], n, 512, 28, 28, mode="bilinear"))
    plan, conditions = PhysicalPlan.from_graph(graph, Precision.FP32), Conditions.parse(layout=layout)
    rates = Calibration.read().rates.on(device)
    assert rates.plane_cycles
    common = {"conditions": conditions, "rates": rates, "kernels": load_kernel_model()}
    sample, at = plan.at([64], device=device, **common), plan.kernels.work.at([64])
    (busy,) = busy_ms(plan.kernels, at, devices=[device], **common)
    assert sample.kernel_ms[0] == pytest.approx(busy[0, plan.node])
    planes_ms = rates.plane_cycles * 64 * 512 / (device.boost_clock_mhz * 1e3)
    assert (sample.kernel_ms[0].max() > planes_ms) == is_slow
