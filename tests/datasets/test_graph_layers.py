from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_layers import list_layers
from dippm.graph import DType, Graph, OpKind

_AMP = Conditions.parse(precision="amp")
_WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


def _norm(builder: Any, x: Any, channels: int) -> Any:
    vectors = [builder.weight(channels) for _ in range(4)]
    return builder.node(OpKind.BATCH_NORM, [x, *vectors], builder.N, channels, 8, 8, axes_size=channels)


def test_a_convolution_takes_norm_and_activation_with_it(new_builder: Callable[[], Any]) -> None:
    builder = new_builder()
    n = builder.N
    x = builder.input(n, 3, 16, 16)
    x = builder.node(OpKind.CONV, [x, builder.weight(8, 3, 3, 3), builder.weight(8)], n, 8, 8, 8, **_WINDOW)
    x = _norm(builder, x, 8)
    graph = builder.graph(builder.node(OpKind.SILU, [x], n, 8, 8, 8))
    (found,) = list_layers(graph, 4, _AMP)
    layer = found.layer
    assert [graph.nodes[node].kind for node in found.nodes] == [OpKind.CONV, OpKind.BATCH_NORM, OpKind.SILU]
    assert (layer.image, layer.channels, layer.image_bytes) == ((4, 3, 16, 16), 8, 4)
    assert (layer.kernel, layer.stride, layer.padding, layer.groups) == ((3, 3), (2, 2), (1, 1), 1)
    assert (layer.has_bias, layer.has_norm, layer.activation, layer.is_in_place) == (True, True, OpKind.SILU, False)
    assert layer.operators == len(found.nodes)


def _two(builder: Any, *behind: OpKind) -> Graph:
    """Two convolutions, the second of what stands behind the first."""
    n = builder.N
    x = builder.input(n, 8, 16, 16)
    square = _WINDOW | {"stride": (1, 1)}
    x = builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], n, 8, 16, 16, **square)
    for kind in behind:
        x = builder.node(kind, [x], n, 8, 16, 16)
    return builder.graph(builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], n, 8, 16, 16, **square))  # type: ignore[no-any-return]


def test_an_image_has_the_format_that_autocast_gives_it(new_builder: Callable[[], Any]) -> None:
    first, second = list_layers(_two(new_builder(), OpKind.RELU), 2, _AMP)
    # The model's own input is cast by the convolution that reads it.
    assert (first.layer.image_bytes, second.layer.image_bytes) == (4, 2)
    assert (first.layer.activation, second.layer.activation) == (OpKind.RELU, None)
    plain = list_layers(_two(new_builder(), OpKind.RELU), 2, Conditions())
    assert [each.layer.image_bytes for each in plain] == [4, 4]


def test_an_activation_without_a_norm_is_no_norm(new_builder: Callable[[], Any]) -> None:
    first, _ = list_layers(_two(new_builder(), OpKind.SIGMOID, OpKind.RELU), 2, _AMP)
    assert (first.layer.has_norm, first.layer.activation, len(first.nodes)) == (False, OpKind.SIGMOID, 2)


def test_what_others_read_too_stands_alone(new_builder: Callable[[], Any]) -> None:
    builder = new_builder()
    n = builder.N
    x = builder.input(n, 8, 16, 16)
    square = _WINDOW | {"stride": (1, 1)}
    y = builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], n, 8, 16, 16, **square)
    z = builder.node(OpKind.RELU, [y], n, 8, 16, 16)
    graph = builder.graph(builder.node(OpKind.ADD, [y, z], n, 8, 16, 16))
    (found,) = list_layers(graph, 2, _AMP)
    assert (found.layer.activation, len(found.nodes)) == (None, 1)


def test_a_layout_turns_images_and_weights(new_builder: Callable[[], Any]) -> None:
    graph = _two(new_builder(), OpKind.RELU)
    for layout, is_last in (("nchw", False), ("nhwc", True)):
        layers = [each.layer for each in list_layers(graph, 2, Conditions.parse(precision="amp", layout=layout))]
        assert [(layer.layout.value, layer.is_read_last) for layer in layers] == [(layout, is_last)] * 2


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT8])
def test_convolutions_in_formats_that_none_is_measured_in_are_none(
    new_builder: Callable[[], Any], dtype: DType
) -> None:
    builder = new_builder()
    n = builder.N
    x = builder.input(n, 8, 16, 16, dtype=dtype)
    weight = builder.weight(8, 8, 3, 3, dtype=dtype)
    graph = builder.graph(builder.node(OpKind.CONV, [x, weight], n, 8, 8, 8, dtype=dtype, **_WINDOW))
    for conditions in (_AMP, Conditions()):
        assert not list(list_layers(graph, 2, conditions))


def test_convolutions_of_sequences_are_none(new_builder: Callable[[], Any]) -> None:
    builder = new_builder()
    n = builder.N
    line = {"kernel": (3,), "stride": (1,), "padding": (1,), "dilation": (1,), "groups": 1}
    x = builder.input(n, 8, 16)
    graph = builder.graph(builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3)], n, 8, 16, **line))
    assert not list(list_layers(graph, 2, _AMP))
