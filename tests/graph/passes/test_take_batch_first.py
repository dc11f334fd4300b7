from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.take_batch_first import take_batch_first


@pytest.mark.parametrize("perm", [(1, 0, 2), (1, 2, 0)])
def test_only_a_swap_of_batch_and_time_goes(builder: Any, perm: tuple[int, ...]) -> None:
    x, weight = builder.input(builder.N, 20, 20), builder.weight(64, 20)
    turned = builder.node(OpKind.VIEW, [x], 20, builder.N, 20, function="transpose", perm=perm)
    builder.node(OpKind.RNN, [turned, weight], 20, builder.N, 64, hidden_size=64, num_layers=1, num_directions=1)
    editor = GraphEditor(builder.graph())
    take_batch_first(editor)
    graph = editor.to_graph()
    kinds = [node.kind for node in graph.nodes]
    if perm == (1, 0, 2):
        assert kinds == [OpKind.RNN, OpKind.VIEW]
        assert (graph.nodes[0].inputs[0], graph.nodes[0].attributes["batch_first"]) == (0, True)
        assert [dim.at(3) for dim in graph.tensors[graph.nodes[0].outputs[0]].shape] == [3, 20, 64]
        assert [dim.at(3) for dim in graph.tensors[graph.outputs[0]].shape] == [20, 3, 64]
    else:
        assert kinds == [OpKind.VIEW, OpKind.RNN]
