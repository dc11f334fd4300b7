from typing import Any

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_select import fuse_select


def fused(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    fuse_select(editor)
    return editor.to_graph()


def test_a_slice_of_one_and_its_squeeze_are_a_select(builder: Any) -> None:
    x = builder.input(builder.N, 128, 64)
    piece = builder.node(OpKind.VIEW, [x], builder.N, 1, 64, function="slice", steps=(1, 1, 1))
    builder.node(OpKind.VIEW, [piece], builder.N, 64, function="reshape")
    (view,) = fused(builder).nodes
    assert (view.inputs, view.attributes) == ((0,), {"function": "select", "axis": 1})


def test_it_looks_through_a_transposition_of_what_is_left_in_order(builder: Any) -> None:
    x = builder.input(builder.N, 128, 64)
    turned = builder.node(OpKind.VIEW, [x], 128, builder.N, 64, function="transpose", perm=(1, 0, 2))
    piece = builder.node(OpKind.VIEW, [turned], 1, builder.N, 64, function="slice", steps=(1, 1, 1))
    builder.node(OpKind.VIEW, [piece], builder.N, 64, function="reshape")
    (view,) = fused(builder).nodes
    assert (view.inputs, view.attributes["axis"]) == ((0,), 1)


def test_larger_slices_and_other_reshapes_stay(builder: Any) -> None:
    x = builder.input(builder.N, 128, 64)
    pair = builder.node(OpKind.VIEW, [x], builder.N, 2, 64, function="slice", steps=(1, 1, 1))
    builder.node(OpKind.VIEW, [pair], builder.N, 128, function="reshape")
    assert len(fused(builder).nodes) == 2
