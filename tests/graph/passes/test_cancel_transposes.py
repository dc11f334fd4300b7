from typing import Any

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.cancel_transposes import cancel_transposes


def cancelled(builder: Any, *outputs: int) -> Any:
    editor = GraphEditor(builder.graph(*outputs))
    cancel_transposes(editor)
    return editor.to_graph()


def test_there_and_back_is_nothing(builder: Any) -> None:
    x = builder.input(builder.N, 3, 8, 9)
    last = builder.node(OpKind.VIEW, [x], builder.N, 8, 9, 3, function="transpose", perm=(0, 2, 3, 1))
    back = builder.node(OpKind.VIEW, [last], builder.N, 3, 8, 9, function="transpose", perm=(0, 3, 1, 2))
    builder.node(OpKind.RELU, [back], builder.N, 3, 8, 9)
    (relu,) = cancelled(builder).nodes
    assert relu.inputs == (0,)


def test_two_become_one(builder: Any) -> None:
    x = builder.input(builder.N, 3, 8, 9)
    first = builder.node(OpKind.VIEW, [x], builder.N, 8, 9, 3, function="transpose", perm=(0, 2, 3, 1))
    builder.node(OpKind.VIEW, [first], 9, builder.N, 8, 3, function="transpose", perm=(2, 0, 1, 3))
    (view,) = cancelled(builder).nodes
    assert (view.inputs, view.attributes["perm"]) == ((0,), (3, 0, 2, 1))


def test_the_first_stays_for_who_else_reads_it(builder: Any) -> None:
    x = builder.input(builder.N, 3)
    first = builder.node(OpKind.VIEW, [x], 3, builder.N, function="transpose", perm=(1, 0))
    back = builder.node(OpKind.VIEW, [first], builder.N, 3, function="transpose", perm=(1, 0))
    relu = builder.node(OpKind.RELU, [back], builder.N, 3)
    assert [node.kind for node in cancelled(builder, first, relu).nodes] == [OpKind.VIEW, OpKind.RELU]


def test_a_reshape_in_between_keeps_them(builder: Any) -> None:
    x = builder.input(builder.N, 3, 4)
    first = builder.node(OpKind.VIEW, [x], builder.N, 4, 3, function="transpose", perm=(0, 2, 1))
    shaped = builder.node(OpKind.VIEW, [first], builder.N, 3, 4, function="reshape")
    builder.node(OpKind.VIEW, [shaped], builder.N, 4, 3, function="transpose", perm=(0, 2, 1))
    assert len(cancelled(builder).nodes) == 3
