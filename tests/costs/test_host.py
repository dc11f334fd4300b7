from typing import Any

from dippm.costs.host import goes_through_cudnn, host_dispatch_us
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind


def test_every_kind_has_a_host_time(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    for kind in OpKind:
        builder.node(kind, [x], builder.N, 4)
    times = dict(zip(OpKind, host_dispatch_us(GraphSizes.from_graph(builder.graph())), strict=True))
    assert min(times.values()) > 0
    assert times[OpKind.VIEW] < times[OpKind.ADD] < times[OpKind.CONV]


def test_convolutions_go_through_cudnn_unless_they_are_depthwise(builder: Any) -> None:
    n, x = builder.N, builder.input(builder.N, 32, 8, 8)
    for groups in (1, 8, 32):
        weight = builder.weight(32, 32 // groups, 3, 3)
        builder.node(OpKind.CONV, [x, weight], n, 32, 8, 8, kernel=(3, 3), padding=((1, 1), (1, 1)), groups=groups)
    builder.node(OpKind.RELU, [x], n, 32, 8, 8)
    found = goes_through_cudnn(GraphSizes.from_graph(builder.graph()))
    assert found.tolist() == [True, True, False, False]


def test_gradients_of_weights_go_the_way_of_their_convolution(builder: Any) -> None:
    x, gradient = (builder.input(builder.N, 32, 8, 8) for _ in range(2))
    for groups in (1, 32):
        builder.node(OpKind.CONV_WEIGHT_GRAD, [gradient, x], 32, 32 // groups, 3, 3, kernel=(3, 3), groups=groups)
    assert goes_through_cudnn(GraphSizes.from_graph(builder.graph())).tolist() == [True, False]
