"""Copies that convolutions on tensor cores make, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs import GraphSizes, MemoryTimeline, Precision, Purpose, Workload, live_memory
from dippm.costs.layout_copies import layout_copies
from dippm.costs.precision import plan_types
from dippm.graph import OpKind

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


def _timeline(graph, precision=Precision.FP32, **options):
    return MemoryTimeline.from_workload(Workload.from_graph(graph, precision, **options))


def _copied(builder, weight, precision, *, channels=3, batch=2, **changed):
    """Elements that a convolution to 4 x 4 pixels copies, at a batch, of an image of 4 x 4 pixels."""
    x = builder.input(builder.N, channels, 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(*weight)], builder.N, weight[0], 4, 4, **{**_CONV, **changed})
    graph = builder.graph()
    copies, _ = layout_copies(GraphSizes.from_graph(graph), plan_types(graph, precision))
    element = 4 if precision is Precision.FP32 else 2
    return np.polynomial.polynomial.polyval(batch, copies[0]) / element


def test_layout_copies_of_a_convolution(builder):
    x = builder.input(builder.N, 8, 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(16, 8, 3, 3)], builder.N, 16, 4, 4, **_CONV)
    graph = builder.graph()
    image, weight, result = 8 * 16, 16 * 8 * 9, 16 * 16
    for precision, purpose, expected in (
        (Precision.FP32, Purpose.LAYOUT_TF32, 4 * (2 * image + weight + 2 * result)),
        (Precision.FP16, Purpose.LAYOUT_HALF, 2 * (2 * image + weight + 2 * result)),
        (Precision.FP32_STRICT, None, 0),
    ):
        timeline = _timeline(graph, precision)
        live = live_memory(timeline, [2], without=frozenset())
        assert live.workspace_bytes.tolist() == [expected]
        if purpose is not None:
            assert live_memory(timeline, [2], without=frozenset({purpose})).workspace_bytes.tolist() == [0]


@pytest.mark.parametrize(
    ("weight", "changed", "copied"),
    [
        ((8, 1, 3, 3), {"groups": 8}, 0),
        ((8, 8, 1, 1), {"kernel": (1, 1)}, 0),
        ((8, 4, 3, 3), {"groups": 2}, 4 * (4 * 8 * 16 + 8 * 4 * 9)),
        ((8, 3, 3, 3), {}, 0),
        ((8, 3, 7, 7), {"kernel": (7, 7)}, 4 * (2 * 3 * 16 + 2 * 8 * 16 + 8 * 3 * 49)),
    ],
    ids=["depthwise", "one pixel", "grouped", "first", "wide first"],
)
def test_which_convolutions_make_copies(builder, weight, changed, copied):
    x = builder.input(builder.N, weight[1] * changed.get("groups", 1), 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(*weight)], builder.N, 8, 4, 4, **{**_CONV, **changed})
    assert live_memory(_timeline(builder.graph()), [2], without=frozenset()).workspace_bytes.tolist() == [copied]


@pytest.mark.parametrize(
    ("precision", "purpose"), [(Precision.FP32, Purpose.GROUPED_TF32), (Precision.FP16, Purpose.GROUPED_HALF)]
)
def test_copies_of_convolutions_in_groups_are_known_apart(builder, precision, purpose):
    x = builder.input(builder.N, 8, 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(8, 4, 3, 3)], builder.N, 8, 4, 4, **{**_CONV, "groups": 2})
    timeline = _timeline(builder.graph(), precision)
    of_others = frozenset(Purpose) - {purpose}
    copied = live_memory(timeline, [2], without=frozenset()).workspace_bytes
    assert copied > 0
    assert (
        live_memory(timeline, [2], without=of_others & {Purpose.LAYOUT_TF32, Purpose.LAYOUT_HALF}).workspace_bytes
        == copied
    )
    assert live_memory(timeline, [2], without=frozenset({purpose})).workspace_bytes == 0


@pytest.mark.parametrize(
    ("precision", "weight", "stride", "filled"),
    [
        (Precision.AMP, (64, 3, 7, 7), 2, 4),
        (Precision.AMP, (32, 3, 7, 7), 2, 4),
        (Precision.AMP, (48, 3, 7, 7), 2, 3),
        (Precision.AMP, (64, 3, 7, 7), 4, 3),
        (Precision.AMP_BF16, (64, 3, 7, 7), 2, 8),
        (Precision.FP32, (64, 3, 7, 7), 2, 3),
        (Precision.AMP, (448, 3, 16, 16), 16, 8),
        (Precision.AMP, (256, 3, 32, 32), 32, 8),
        (Precision.FP32, (256, 3, 16, 16), 16, 3),
    ],
)
def test_first_convolutions_fill_their_image_up(builder, precision, weight, stride, filled):
    outputs, _, rows, columns = weight
    image, result = 2 * filled * 16, 2 * outputs * 16
    copied = _copied(builder, weight, precision, kernel=(rows, columns), stride=(stride, stride))
    assert copied == pytest.approx(image + outputs * filled * rows * columns + result)


@pytest.mark.parametrize(
    ("weight", "stride", "is_copied"),
    [
        ((384, 3, 16, 16), 16, False),
        ((384, 3, 14, 14), 14, False),
        ((128, 3, 12, 12), 12, False),
        ((144, 3, 16, 16), 8, False),
        ((447, 3, 16, 16), 16, False),
        ((448, 3, 16, 16), 16, True),
        ((64, 3, 31, 31), 31, False),
        ((64, 3, 32, 32), 32, True),
        # No patches: steps of one pixel, and filters that are narrower.
        ((64, 3, 13, 13), 1, True),
        ((64, 3, 11, 11), 11, True),
        # More channels than an image has.
        ((64, 5, 16, 16), 16, True),
        ((64, 4, 16, 16), 16, False),
        ((64, 4, 5, 5), 1, False),
        ((64, 5, 5, 5), 1, True),
    ],
)
def test_patches_of_few_outputs_make_no_copies_in_16_bits(builder, weight, stride, is_copied):
    copied = _copied(builder, weight, Precision.AMP, channels=weight[1], kernel=weight[2:], stride=(stride, stride))
    assert bool(copied > 0) is is_copied


def test_wide_filters_over_sound_are_no_patches(builder):
    x = builder.input(builder.N, 1, 64)
    w = builder.weight(8, 1, 16)
    stated = {"kernel": (16,), "stride": (16,), "dilation": (1,), "padding": (0,), "groups": 1}
    builder.node(OpKind.CONV, [x, w], builder.N, 8, 4, **stated)
    graph = builder.graph()
    copies, _ = layout_copies(GraphSizes.from_graph(graph), plan_types(graph, Precision.FP16))
    assert np.polynomial.polynomial.polyval(2, copies[0]) == 2 * (2 * 64 + 8 * 16 + 2 * 8 * 4)


@pytest.mark.parametrize(("precision", "is_copied"), [(Precision.AMP, True), (Precision.FP32, False)])
def test_filters_of_one_pixel_copy_where_they_skip_pixels(builder, precision, is_copied):
    copied = _copied(builder, (8, 16, 1, 1), precision, channels=16, kernel=(1, 1), stride=(2, 2))
    assert copied == is_copied * (2 * 16 * 16 + 2 * 8 * 16)


def test_gradients_of_filters_of_one_pixel_copy_both_that_they_read(builder):
    gradient, x = builder.input(builder.N, 8, 4, 4), builder.input(builder.N, 16, 8, 8)
    stated = {**_CONV, "kernel": (1, 1), "stride": (2, 2)}
    builder.node(OpKind.CONV_WEIGHT_GRAD, [gradient, x], 8, 16, 1, 1, **stated)
    graph = builder.graph()
    copies, _ = layout_copies(GraphSizes.from_graph(graph), plan_types(graph, Precision.FP16))
    assert np.polynomial.polynomial.polyval(2, copies[0]) == 2 * (2 * 8 * 16 + 2 * 16 * 64)


def test_images_of_many_channels_are_not_filled_up(builder):
    copied = _copied(builder, (64, 12, 7, 7), Precision.AMP_BF16, channels=12, kernel=(7, 7), stride=(2, 2))
    assert copied == 2 * 12 * 16 + 64 * 12 * 49 + 2 * 64 * 16
