"""Sizes and multiply-accumulates, worked out by hand."""

from __future__ import annotations

from dippm.costs import Workload
from dippm.graph import OpKind


def _conv(builder, source, weight, out, *, kind=OpKind.CONV, bias=False, stride=1, dilation=1, groups=1):
    x = builder.input(builder.N, *source)
    inputs = [x, builder.weight(*weight)] + ([builder.weight(out[0])] if bias else [])
    kernel = tuple(weight[2:])
    builder.node(
        kind, inputs, builder.N, *out, kernel=kernel, stride=(stride,) * len(kernel),
        dilation=(dilation,) * len(kernel), padding=(0,) * len(kernel), groups=groups,
    )  # fmt: skip
    return Workload.from_graph(builder.graph()).at([2])


def test_strided(builder):
    work = _conv(builder, (3, 224, 224), (64, 3, 7, 7), (64, 112, 112), stride=2, bias=True)
    assert work.macs[0, 0] == 2 * 64 * 112 * 112 * 3 * 49
    sizes = work.convolution
    for size, expected in (
        (sizes.batch, 2), (sizes.in_channels, 3), (sizes.out_channels, 64), (sizes.in_height, 224),
        (sizes.in_width, 224), (sizes.out_height, 112), (sizes.out_width, 112),
    ):  # fmt: skip
        assert size.tolist() == [[expected]]
    assert sizes.kernel_height.tolist() == sizes.kernel_width.tolist() == [7]
    assert sizes.stride_height.tolist() == sizes.stride_width.tolist() == [2]
    assert sizes.has_bias.tolist() == [True]
    assert sizes.is_transposed.tolist() == [False]


def test_depthwise(builder):
    work = _conv(builder, (32, 56, 56), (32, 1, 3, 3), (32, 56, 56), groups=32)
    assert work.macs[0, 0] == 2 * 32 * 56 * 56 * 9
    assert work.convolution.groups.tolist() == [32]
    assert work.convolution.in_channels[0, 0] == 32


def test_grouped_and_dilated(builder):
    work = _conv(builder, (64, 28, 28), (128, 16, 3, 3), (128, 24, 24), groups=4, dilation=2)
    assert work.macs[0, 0] == 2 * 128 * 24 * 24 * 16 * 9
    assert work.convolution.dilation_height.tolist() == [2]


def test_transposed_counts_by_its_input(builder):
    # Each of the 14 x 14 input positions meets 64 input channels, 32 output channels and 2 x 2 places.
    work = _conv(builder, (64, 14, 14), (64, 32, 2, 2), (32, 28, 28), kind=OpKind.CONV_TRANSPOSE, stride=2)
    assert work.macs[0, 0] == 2 * 14 * 14 * 64 * 32 * 4
    assert work.convolution.is_transposed.tolist() == [True]


def test_one_dimension_has_height_one(builder):
    work = _conv(builder, (80, 3000), (384, 80, 3), (384, 1500), stride=2)
    assert work.macs[0, 0] == 2 * 384 * 1500 * 80 * 3
    sizes = work.convolution
    assert [sizes.in_height[0, 0], sizes.in_width[0, 0], sizes.out_width[0, 0]] == [1, 3000, 1500]
    assert [sizes.kernel_height[0], sizes.kernel_width[0], sizes.stride_height[0], sizes.stride_width[0]] == [
        1,
        3,
        1,
        2,
    ]


def test_three_dimensions_keep_the_matrix_product(builder):
    work = _conv(builder, (3, 16, 112, 112), (64, 3, 3, 7, 5), (64, 14, 106, 108))
    macs = 2 * 64 * 14 * 106 * 108 * 3 * 3 * 7 * 5
    assert work.macs[0, 0] == macs
    sizes = work.convolution
    rows = sizes.batch * sizes.out_height * sizes.out_width
    depth = sizes.in_channels * sizes.kernel_height * sizes.kernel_width
    assert (rows * depth * sizes.out_channels).tolist() == [[macs]]
    assert sizes.batch[0, 0] == 2 * 14


def test_a_single_image_without_batch(builder):
    x = builder.input(3, 8, 8)
    builder.node(
        OpKind.CONV, [x, builder.weight(4, 3, 3, 3)], 4, 6, 6, kernel=(3, 3), stride=(1, 1), dilation=(1, 1),
        padding=(0, 0), groups=1,
    )  # fmt: skip
    work = Workload.from_graph(builder.graph()).at([2])
    assert work.macs[0, 0] == 4 * 36 * 27
    sizes = work.convolution
    assert [sizes.batch[0, 0], sizes.in_channels[0, 0], sizes.in_height[0, 0], sizes.out_channels[0, 0]] == [1, 3, 8, 4]
