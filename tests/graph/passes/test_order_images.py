from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.order_images import order_images

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def ordered(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    order_images(editor)
    return editor.to_graph()


def test_an_image_is_given_as_it_is_read(builder: Any) -> None:
    x, weight = builder.input(builder.N, 32, 32, 3), builder.weight(16, 3, 3, 3)
    turned = builder.node(OpKind.VIEW, [x], builder.N, 3, 32, 32, function="transpose", perm=TO_FIRST)
    builder.node(OpKind.CONV, [turned, weight], builder.N, 16, 30, 30)
    graph = ordered(builder)
    assert [dim.at(1) for dim in graph.tensors[graph.inputs[0]].shape] == [1, 32, 32, 3]
    assert graph.nodes[0].attributes == {"function": "reshape"}


def test_an_input_that_is_no_image_is_turned(builder: Any) -> None:
    x, weight = builder.input(builder.N, 32, 32, 3), builder.weight(32, 8)
    turned = builder.node(OpKind.VIEW, [x], builder.N, 3, 32, 32, function="transpose", perm=TO_FIRST)
    builder.node(OpKind.LINEAR, [turned, weight], builder.N, 3, 32, 8)
    assert ordered(builder).nodes[0].attributes["function"] == "transpose"


def flatten(builder: Any) -> int:
    x = builder.input(builder.N, 512, 7, 7)
    relu = builder.node(OpKind.RELU, [x], builder.N, 512, 7, 7)
    turned = builder.node(OpKind.VIEW, [relu], builder.N, 7, 7, 512, function="transpose", perm=TO_LAST)
    return int(builder.node(OpKind.VIEW, [turned], builder.N, 25088, function="reshape"))


@pytest.mark.parametrize("between", [None, OpKind.RELU, OpKind.DROPOUT])
def test_features_are_flattened_as_they_stand(builder: Any, between: OpKind | None) -> None:
    features = flatten(builder)
    if between is not None:
        features = builder.node(between, [features], builder.N, 25088)
    builder.node(OpKind.LINEAR, [features, builder.weight(10, 25088)], builder.N, 10)
    graph = ordered(builder)
    assert [node.kind for node in graph.nodes[:2]] == [OpKind.RELU, OpKind.VIEW]
    assert graph.nodes[1].inputs == graph.nodes[0].outputs


@pytest.mark.parametrize("reader", ["nobody", "softmax", "a scale of each feature", "a layer and the caller", "weight"])
def test_features_whose_order_is_read_keep_it(builder: Any, reader: str) -> None:
    features = flatten(builder)
    outputs = [features]
    if reader == "softmax":
        outputs = [builder.node(OpKind.SOFTMAX, [features], builder.N, 25088, axes=(1,))]
    elif reader == "a scale of each feature":
        outputs = [builder.node(OpKind.MUL, [features, builder.weight(25088)], builder.N, 25088)]
    elif reader == "a layer and the caller":
        outputs.append(builder.node(OpKind.LINEAR, [features, builder.weight(10, 25088)], builder.N, 10))
    elif reader == "weight":
        outputs = [builder.node(OpKind.LINEAR, [builder.input(8, 25088), features], 8, builder.N)]
    editor = GraphEditor(builder.graph(*outputs))
    order_images(editor)
    functions = [node.attributes.get("function") for node in editor.to_graph().nodes]
    assert functions[1:3] == ["transpose", "reshape"]


def test_other_reshapes_keep_their_order(builder: Any) -> None:
    x = builder.input(builder.N, 512, 7, 7)
    turned = builder.node(OpKind.VIEW, [x], builder.N, 7, 7, 512, function="transpose", perm=TO_LAST)
    builder.node(OpKind.VIEW, [turned], builder.N, 49, 512, function="reshape")
    assert len(ordered(builder).nodes) == 2
