"""Which kernels find an image's channels side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Layout, Optimizer
from dippm.costs.memory_format import MemoryFormats
from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.graph import Graph, Node, OpKind

POINT = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


def formats(graph: Graph, layout: Layout) -> tuple[list[bool], list[bool]]:
    """Of each node whether it reads channels last, and whether it works so."""
    found = MemoryFormats.of_layouts(GraphSizes.from_graph(graph))[layout]
    return found.is_read_last.tolist(), found.is_last.tolist()


def conv(builder: Any, x: int, weight: int | None = None) -> int:
    weight = builder.weight(8, 8, 1, 1) if weight is None else weight
    return int(builder.node(OpKind.CONV, [x, weight], builder.N, 8, 4, 4, groups=1, **POINT))


@pytest.mark.parametrize("layout", list(Layout))
def test_images_keep_the_order_that_the_model_is_called_with(builder: Any, layout: Layout) -> None:
    n = builder.N
    x = conv(builder, builder.input(n, 8, 4, 4))
    x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(8)], n, 8, 4, 4)
    y = builder.node(OpKind.RELU, [x], n, 8, 4, 4)
    builder.node(OpKind.ADD, [x, y], n, 8, 4, 4)
    builder.node(OpKind.MAX_POOL, [y], n, 8, 2, 2, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
    is_last = layout is Layout.NHWC
    assert formats(builder.graph(), layout) == ([is_last] * 5, [is_last] * 5)


def test_a_group_norm_turns_images_and_a_convolution_turns_them_back(builder: Any) -> None:
    n = builder.N
    x = conv(builder, builder.input(n, 8, 4, 4))
    x = builder.node(OpKind.GROUP_NORM, [x, builder.weight(8)], n, 8, 4, 4)
    x = builder.node(OpKind.RELU, [x], n, 8, 4, 4)
    conv(builder, x)
    read, works = formats(builder.graph(), Layout.NHWC)
    assert read == [True, True, False, False]
    assert works == [True, False, False, True]


def test_a_computed_weight_turns_nothing_back(builder: Any) -> None:
    """Standardised weights, as ResNetV2-BiT has them: behind its first group norm it runs as in NCHW."""
    n = builder.N
    weight = builder.node(OpKind.MUL, [builder.weight(8, 8, 1, 1), builder.weight(8, 1, 1, 1)], 8, 8, 1, 1)
    x = conv(builder, builder.input(n, 8, 4, 4), weight)
    x = builder.node(OpKind.GROUP_NORM, [x, builder.weight(8)], n, 8, 4, 4)
    conv(builder, x, weight)
    _, works = formats(builder.graph(), Layout.NHWC)
    assert works[1:] == [True, False, False]


@pytest.mark.parametrize("layout", list(Layout))
def test_permuted_tokens_are_an_image_with_channels_last(builder: Any, layout: Layout) -> None:
    n = builder.N
    tokens = builder.input(n, 16, 8)
    own = builder.node(OpKind.LINEAR, [tokens, builder.weight(8, 8)], n, 16, 8)
    x = builder.node(OpKind.VIEW, [own], n, 8, 16, alias_of=own, function="transpose", perm=(0, 2, 1))
    x = builder.node(OpKind.VIEW, [x], n, 8, 4, 4, alias_of=own, function="view")
    own = builder.node(OpKind.GELU, [conv(builder, x)], n, 8, 4, 4)
    x = builder.node(OpKind.VIEW, [own], n, 8, 16, alias_of=own, function="view")
    x = builder.node(OpKind.VIEW, [x], n, 16, 8, alias_of=own, function="permute", perm=(0, 2, 1))
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], n, 16, 8)
    read, works = formats(builder.graph(), layout)
    assert works[3:5] == [True, True]
    assert read[3:5] == [True, True]
    # Turned twice, the tokens lie as they were.
    assert not read[7]


def test_the_larger_operand_decides(builder: Any) -> None:
    n = builder.N
    gate, x = builder.input(n, 8, 1, 1), conv(builder, builder.input(n, 8, 4, 4))
    gate = builder.node(OpKind.COPY, [gate], n, 8, 1, 1, function="clone")
    builder.node(OpKind.MUL, [gate, x], n, 8, 4, 4)
    assert formats(builder.graph(), Layout.NHWC)[1][-1]


def test_long_chains_of_turns_are_followed(builder: Any) -> None:
    """As many rounds as there are tensors to look back over, and no more."""
    n = builder.N
    x = own = builder.node(OpKind.COPY, [builder.input(n, 8, 4, 4)], n, 8, 4, 4, function="clone")
    for _ in range(300):
        x = builder.node(OpKind.VIEW, [x], n, 8, 4, 4, alias_of=own, function="permute", perm=(0, 2, 3, 1))
    builder.node(OpKind.RELU, [x], n, 8, 4, 4)
    assert formats(builder.graph(), Layout.NCHW)[0] == [False] + [turn % 2 == 1 for turn in range(301)]


def test_several_graphs_are_followed_apart(builder: Any) -> None:
    n = builder.N
    x = conv(builder, builder.input(n, 8, 4, 4))
    builder.node(OpKind.GROUP_NORM, [x, builder.weight(8)], n, 8, 4, 4)
    graph = builder.graph()
    alone = MemoryFormats.of_layouts(GraphSizes.from_graph(graph))[Layout.NHWC]
    pair = MemoryFormats.of_layouts(GraphSizes.from_graphs([graph, graph]))[Layout.NHWC]
    assert np.array_equal(pair.is_last, np.tile(alone.is_last, 2))
    assert np.array_equal(pair.is_read_last, np.tile(alone.is_read_last, 2))


def test_a_cast_that_writes_nothing_changes_no_other_graph(new_builder: Any) -> None:
    first, second = new_builder(), new_builder()
    first.node(OpKind.CONV, [first.input(first.N, 8, 4, 4)], first.N, 8, 4, 4)
    image = second.input(second.N, 8, 4, 4)
    second.nodes.append(
        Node(kind=OpKind.CAST, inputs=(second.node(OpKind.RELU, [image], second.N, 8, 4, 4),), outputs=())
    )
    graphs = [first.graph(), second.graph(image)]
    alone = MemoryFormats.of_layouts(GraphSizes.from_graph(graphs[0]))[Layout.NHWC]
    pair = MemoryFormats.of_layouts(GraphSizes.from_graphs(graphs))[Layout.NHWC]
    assert pair.is_last[: len(alone.is_last)].tolist() == alone.is_last.tolist() == [True]


def test_a_training_step_keeps_the_order_of_its_images(chain_of_convolutions: Graph) -> None:
    """Weights that autocast has cast keep the layout's order, and gradients that of the image they belong to."""
    settings = TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.AMP)
    graph = make_training_graph(chain_of_convolutions, settings).graph
    found = MemoryFormats.of_layouts(GraphSizes.from_graph(graph))
    is_image = np.array([bool(node.outputs) and len(graph.tensors[node.outputs[0]].shape) == 4 for node in graph.nodes])
    kinds = {OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD, OpKind.NORM_GRAD, OpKind.ELEMENTWISE_GRAD}
    # The gradient of the loss is spread over images that nobody has laid out.
    is_asked = is_image & np.array([node.kind in kinds and len(node.inputs) > 1 for node in graph.nodes])
    assert {graph.nodes[position].kind for position in np.flatnonzero(is_asked)} == kinds
    assert found[Layout.NHWC].is_last[is_asked].all()
    assert not found[Layout.NCHW].is_last.any()


@pytest.fixture(name="chain_of_convolutions")
def _chain_of_convolutions(builder: Any) -> Graph:
    n = builder.N
    x = builder.input(n, 8, 4, 4)
    for _ in range(3):
        x = conv(builder, x)
        x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(8), builder.weight(8)], n, 8, 4, 4)
        x = builder.node(OpKind.RELU, [x], n, 8, 4, 4)
    return builder.graph(x)
