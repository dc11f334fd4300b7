from __future__ import annotations

from dippm.graph import Dim, OpKind, TensorRole
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fold_constants import fold_constants

N = Dim(1, 0)


def test_what_follows_from_constants_is_a_constant(sketch) -> None:
    sketch.input("x", N, 4).tensor("c", 4, role=TensorRole.CONSTANT).node("d", OpKind.UNARY, "c", function="exp")
    sketch.node("e", OpKind.MUL, "d c").node("y", OpKind.ADD, "x e")
    editor = GraphEditor(sketch.graph("y"))
    fold_constants(editor)
    graph = editor.to_graph()
    assert [node.kind for node in graph.nodes] == [OpKind.ADD]
    assert graph.tensors[graph.nodes[0].inputs[1]].role is TensorRole.CONSTANT


def test_work_on_parameters_stays(sketch, after) -> None:
    sketch.input("x", N, 4).weight("w", 4).node("d", OpKind.UNARY, "w", function="exp")
    assert [kind for kind, _ in after(fold_constants, sketch.node("y", OpKind.ADD, "x d").graph("y"))] == [
        "unary",
        "add",
    ]
