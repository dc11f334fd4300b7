from typing import Any

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fold_weight_views import fold_weight_views


def folded(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    fold_weight_views(editor)
    return editor.to_graph()


def test_a_weight_is_stored_as_its_reader_wants_it(builder: Any) -> None:
    x, kernel = builder.input(builder.N, 3, 8, 8), builder.weight(3, 3, 3, 16)
    turned = builder.node(OpKind.VIEW, [kernel], 16, 3, 3, 3, function="transpose", perm=(3, 2, 0, 1))
    builder.node(OpKind.CONV, [x, turned], builder.N, 16, 6, 6)
    graph = folded(builder)
    (conv,) = graph.nodes
    weight = graph.tensors[conv.inputs[1]]
    assert ([dim.fixed for dim in weight.shape], weight.name) == ([16, 3, 3, 3], "t1")
    assert graph.parameter_count == 16 * 27


def test_a_weight_that_others_read_too_stays(builder: Any) -> None:
    x, weight = builder.input(builder.N, 4), builder.weight(4, 4)
    turned = builder.node(OpKind.VIEW, [weight], 4, 4, function="transpose", perm=(1, 0))
    first = builder.node(OpKind.LINEAR, [x, weight], builder.N, 4)
    builder.node(OpKind.LINEAR, [first, turned], builder.N, 4)
    assert len(folded(builder).nodes) == 3


def test_an_activation_stays(builder: Any) -> None:
    x = builder.input(builder.N, 4, 2)
    builder.node(OpKind.VIEW, [x], builder.N, 8, function="reshape")
    assert len(folded(builder).nodes) == 1
