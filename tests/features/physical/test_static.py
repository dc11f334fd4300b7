"""What an operator is does not depend on its batch."""

from __future__ import annotations

from typing import Any

from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.features.physical import PhysicalPlan
from dippm.features.physical.columns import ALIGNMENTS, PIXEL_ALIGNMENTS
from dippm.graph import OpKind


def test_gradients_are_like_what_they_are_the_gradients_of(chain: Any, at: Any, column: Any) -> None:
    training = make_training_graph(chain(layers=1), TrainingSettings())
    plan = PhysicalPlan.from_graph(training, Precision.FP32)
    sample = at(plan, 1, mode=Mode.TRAINING)
    is_gradient = column(sample, "is_norm_grad")[0] == 1
    assert is_gradient.any()
    assert (column(sample, "is_batch_norm")[0][is_gradient] == 1).all()


def test_what_channels_and_pixels_of_a_convolution_divide_by(builder: Any, at: Any, column: Any) -> None:
    n = builder.N
    # 48 inputs and 20 outputs in each of two groups, on an image of 14 by 14 = 196 pixels.
    inputs = [builder.input(n, 96, 14, 14), builder.weight(40, 48, 1, 1)]
    square = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    builder.node(OpKind.CONV, inputs, n, 40, 14, 14, groups=2, **square)
    sample = at(PhysicalPlan.from_graph(builder.graph(), Precision.AMP), 3)
    is_conv = column(sample, "is_conv")[0] == 1

    def divisors(name: str, sizes: tuple[int, ...]) -> list[int]:
        return [size for size in sizes if column(sample, f"{name}_by_{size}")[0][is_conv].tolist() == [1.0]]

    assert divisors("in_channels", ALIGNMENTS) == [2, 4, 8, 16]
    assert divisors("out_channels", ALIGNMENTS) == [2, 4]
    assert divisors("pixels", PIXEL_ALIGNMENTS) == [2, 4]
