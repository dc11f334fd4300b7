"""Which depthwise convolutions run on PyTorch's own kernel: ``use_cudnn_depthwise`` read by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.convolution import ConvolutionSizes, ConvolutionTable
from dippm.costs.depthwise import is_depthwise, runs_natively
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind


def sizes_of(builder: Any, *, batch: int = 8, kind: OpKind = OpKind.CONV, **given: Any) -> ConvolutionSizes:
    channels, width = given.get("channels", 64), given.get("width", 28)
    kernel, stride, multiplier = given.get("kernel", (3, 3)), given.get("stride", 1), given.get("multiplier", 1)
    x = builder.input(builder.N, channels, width, width)
    builder.node(
        kind,
        [x, builder.weight(channels * multiplier, 1, *kernel)],
        builder.N,
        channels * multiplier,
        width // stride,
        width // stride,
        groups=given.get("groups", channels),
        kernel=kernel,
        stride=(stride, stride),
        dilation=(given.get("dilation", 1),) * 2,
        padding=(0, 0),
    )
    sizes = GraphSizes.from_graph(builder.graph())
    return ConvolutionTable.build(sizes, np.array([0])).at(np.array([float(batch)]))


def is_own(sizes: ConvolutionSizes, *, is_half: bool = True, is_last: bool = False, is_gradient: bool = False) -> bool:
    given = [np.array([each]) for each in (is_half, is_last, is_gradient)]
    return bool(runs_natively(sizes, is_half=given[0], is_last=given[1], is_gradient=given[2])[0, 0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"kernel": (5, 5)}, False),
        ({"kernel": (1, 1)}, False),
        ({"kernel": (7, 7)}, True),
        ({"kernel": (1, 3)}, True),
        ({"dilation": 2}, True),
        ({"channels": 31}, True),
        ({"width": 7}, False),
        ({"width": 6}, True),
        ({"stride": 3, "width": 27}, True),
        # With a stride of 2: 512 channels, or 256 of 28 pixels and more, but a batch of 1 always.
        ({"stride": 2}, True),
        ({"stride": 2, "batch": 1}, False),
        ({"stride": 2, "channels": 512, "width": 14}, False),
        ({"stride": 2, "channels": 256}, False),
        ({"stride": 2, "channels": 256, "width": 14}, True),
        # Filters of one pixel: small images and batches.
        ({"stride": 2, "kernel": (1, 1), "channels": 128, "width": 7, "batch": 16}, False),
        ({"stride": 2, "kernel": (1, 1), "channels": 128, "width": 7, "batch": 17}, True),
        ({"stride": 2, "kernel": (1, 1), "channels": 128, "width": 28, "batch": 1}, False),
    ],
)
def test_half_precision_images_in_rows(builder: Any, given: dict[str, Any], expected: bool) -> None:
    sizes = sizes_of(builder, **given)
    assert is_own(sizes) is expected
    # Channels last is always cuDNN's, other formats never in NCHW.
    assert not is_own(sizes, is_last=True)
    assert is_own(sizes, is_half=False)


def test_groups_of_several_channels_are_not_depthwise(builder: Any) -> None:
    x = builder.input(builder.N, 64, 28, 28)
    builder.node(
        OpKind.CONV, [x, builder.weight(64, 2, 7, 7)], builder.N, 64, 28, 28,
        groups=32, kernel=(7, 7), stride=(1, 1), dilation=(1, 1), padding=(3, 3),
    )  # fmt: skip
    sizes = ConvolutionTable.build(GraphSizes.from_graph(builder.graph()), np.array([0])).at(np.ones(1))
    assert not is_depthwise(sizes, is_gradient=np.array([False]))[0]
    assert not is_own(sizes, is_half=False)


def test_a_transposed_convolution_is_depthwise_only_as_a_gradient(builder: Any) -> None:
    sizes = sizes_of(builder, kind=OpKind.CONV_TRANSPOSE, kernel=(7, 7))
    assert not is_own(sizes)
    assert is_own(sizes, is_gradient=True)


def test_several_outputs_of_an_input_are_depthwise(builder: Any) -> None:
    assert is_depthwise(sizes_of(builder, multiplier=2), is_gradient=np.array([False]))[0]
