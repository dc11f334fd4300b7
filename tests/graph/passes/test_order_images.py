from typing import Any

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


def test_features_are_flattened_as_they_stand(builder: Any) -> None:
    x = builder.input(builder.N, 512, 7, 7)
    relu = builder.node(OpKind.RELU, [x], builder.N, 512, 7, 7)
    turned = builder.node(OpKind.VIEW, [relu], builder.N, 7, 7, 512, function="transpose", perm=TO_LAST)
    builder.node(OpKind.VIEW, [turned], builder.N, 25088, function="reshape")
    graph = ordered(builder)
    assert [node.kind for node in graph.nodes] == [OpKind.RELU, OpKind.VIEW]
    assert graph.nodes[1].inputs == graph.nodes[0].outputs


def test_other_reshapes_keep_their_order(builder: Any) -> None:
    x = builder.input(builder.N, 512, 7, 7)
    turned = builder.node(OpKind.VIEW, [x], builder.N, 7, 7, 512, function="transpose", perm=TO_LAST)
    builder.node(OpKind.VIEW, [turned], builder.N, 49, 512, function="reshape")
    assert len(ordered(builder).nodes) == 2
