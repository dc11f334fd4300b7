from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_reshaped_linear import fuse_reshaped_linear


def fused(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    fuse_reshaped_linear(editor)
    return editor.to_graph()


@pytest.mark.parametrize(
    ("bias", "is_taken"), [((8, 64), True), ((1, 8, 64), True), ((64,), False), ((128, 8, 64), False)]
)
def test_a_bias_behind_a_reshape_goes_into_the_layer(builder: Any, bias: tuple[int, ...], is_taken: bool) -> None:
    x, weight, added = builder.input(builder.N, 128, 256), builder.weight(256, 512), builder.weight(*bias)
    product = builder.node(OpKind.LINEAR, [x, weight], builder.N, 128, 512)
    heads = builder.node(OpKind.VIEW, [product], builder.N, 128, 8, 64, function="reshape")
    builder.node(OpKind.ADD, [heads, added], builder.N, 128, 8, 64)
    graph = fused(builder)
    if not is_taken:
        assert [node.kind for node in graph.nodes] == [OpKind.LINEAR, OpKind.VIEW, OpKind.ADD]
        return
    linear, view = graph.nodes
    assert (linear.kind, view.kind) == (OpKind.LINEAR, OpKind.VIEW)
    assert [dim.fixed for dim in graph.tensors[linear.inputs[2]].shape] == [512]
    assert graph.parameter_count == 256 * 512 + 512
    assert [dim.at(2) for dim in graph.tensors[graph.outputs[0]].shape] == [2, 128, 8, 64]


def test_a_layer_that_is_flattened_for_and_unflattened_is_the_layer(builder: Any) -> None:
    x, weight, bias = builder.input(builder.N, 128, 256), builder.weight(256, 512), builder.weight(512)
    flat = builder.node(OpKind.VIEW, [x], 128 * builder.N.per_sample, 256, function="reshape")
    product = builder.node(OpKind.LINEAR, [flat, weight], 128, 512)
    shaped = builder.node(OpKind.VIEW, [product], builder.N, 128, 512, function="reshape")
    builder.node(OpKind.ADD, [shaped, bias], builder.N, 128, 512)
    (linear,) = fused(builder).nodes
    assert (linear.kind, linear.inputs[0], len(linear.inputs)) == (OpKind.LINEAR, 0, 3)


def test_a_product_that_others_read_keeps_its_form(builder: Any) -> None:
    x, weight, bias = builder.input(builder.N, 128, 256), builder.weight(256, 512), builder.weight(8, 64)
    product = builder.node(OpKind.LINEAR, [x, weight], builder.N, 128, 512)
    heads = builder.node(OpKind.VIEW, [product], builder.N, 128, 8, 64, function="reshape")
    total = builder.node(OpKind.ADD, [heads, bias], builder.N, 128, 8, 64)
    editor = GraphEditor(builder.graph(product, total))
    fuse_reshaped_linear(editor)
    assert len(editor.to_graph().nodes) == 3


@pytest.mark.parametrize("is_before", [True, False])
def test_a_bias_that_is_cast_before_goes_into_the_layer(builder: Any, is_before: bool) -> None:
    x, weight, added = builder.input(builder.N, 128, 256), builder.weight(256, 512), builder.weight(8, 64)
    cast = builder.node(OpKind.CAST, [added], 8, 64) if is_before else -1
    product = builder.node(OpKind.LINEAR, [x, weight], builder.N, 128, 512)
    heads = builder.node(OpKind.VIEW, [product], builder.N, 128, 8, 64, function="reshape")
    cast = cast if is_before else builder.node(OpKind.CAST, [added], 8, 64)
    builder.node(OpKind.ADD, [heads, cast], builder.N, 128, 8, 64)
    kinds = [node.kind for node in fused(builder).nodes]
    assert (OpKind.ADD not in kinds) is is_before
    assert not is_before or kinds == [OpKind.CAST, OpKind.VIEW, OpKind.LINEAR, OpKind.VIEW]
