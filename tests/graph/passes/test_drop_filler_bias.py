from typing import Any

import pytest

from dippm.graph import Graph, OpKind, TensorRole
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.drop_filler_bias import drop_filler_bias


def convolution(builder: Any, role: TensorRole) -> Graph:
    x = builder.input(builder.N, 3, 8, 8)
    operands = [x, builder.weight(4, 3, 1, 1), builder.weight(4, role=role)]
    builder.node(OpKind.CONV, operands, builder.N, 4, 8, 8, kernel=(1, 1), stride=(1, 1), groups=1)
    return builder.graph()


@pytest.mark.parametrize(("role", "left"), [(TensorRole.CONSTANT, 2), (TensorRole.PARAMETER, 3)])
def test_only_a_constant_bias_goes(builder: Any, role: TensorRole, left: int) -> None:
    editor = GraphEditor(convolution(builder, role))
    drop_filler_bias(editor)
    (node,) = editor.to_graph().nodes
    assert len(node.inputs) == left
    assert node.attributes["kernel"] == (1, 1)
