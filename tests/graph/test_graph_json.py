import json
from dataclasses import replace
from typing import Any

import pytest

from dippm.errors import ModelReadError
from dippm.graph import Graph, Node, OpKind, OwnGradient
from dippm.graph.graph_json import graph_from_dict, graph_to_dict


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    value = builder.input(builder.N, 3, 8, 8)
    weight = builder.weight(4, 3, 3, 3)
    value = builder.node(OpKind.CONV, [value, weight], builder.N, 4, 8, 8, kernel=(3, 3), groups=1, releases=(0,))
    builder.node(OpKind.VIEW, [value], builder.N, 256, alias_of=value)
    graph: Graph = builder.graph(has_lifetimes=True)
    return graph


def test_a_graph_comes_back_through_json(graph: Graph) -> None:
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(graph)))) == graph


def test_what_is_said_of_the_whole_comes_back(graph: Graph) -> None:
    scored = replace(graph, is_scored_in_fp32=True, keeps_fp32_parts=True, proved_batch=64, smallest_batch=2)
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(scored)))) == scored
    before = graph_to_dict(graph)
    for name in ("is_scored_in_fp32", "keeps_fp32_parts", "proved_batch", "smallest_batch"):
        del before[name]  # of a file that was written when graphs did not say
    assert graph_from_dict(json.loads(json.dumps(before))) == graph


def test_gradients_of_its_own_come_back_and_are_looked_at(graph: Graph) -> None:
    node = Node(kind=OpKind.MUL, inputs=(2, 3), outputs=(3,), attributes={"axes": (1, 2)}, releases=(2,))
    own = OwnGradient(
        name="f_1", outputs=(2,), given=(3,), inputs=(1,), results=(3,), kept=(1,), held=(2,), nodes=(node,)
    )
    defined = replace(graph, own_gradients=(own,))
    values = json.loads(json.dumps(graph_to_dict(defined)))
    assert graph_from_dict(values) == defined
    for place, wrong in ((1, []), (3, [99]), (5, [-1])):
        changed = [*values["own_gradients"][0]]
        changed[place] = wrong
        with pytest.raises(ModelReadError, match="gradient of 'f_1'"):
            graph_from_dict({**values, "own_gradients": [changed]})


def test_gradients_of_its_own_are_told_apart(graph: Graph) -> None:
    own = OwnGradient(name="f_1", outputs=(2,), given=(3,), inputs=(1,), results=(3,))
    for other in (
        replace(own, name="f_2"),
        replace(own, given=(1,)),
        replace(own, name="f_2", outputs=(), given=()),
    ):
        with pytest.raises(ModelReadError, match="gradients of the model's own"):
            replace(graph, own_gradients=(own, other))
    several = (own, replace(own, name="f_2", given=(1,)))
    assert replace(graph, own_gradients=several).own_gradients == several


def test_equal_graphs_make_equal_text(graph: Graph) -> None:
    again = graph_from_dict(json.loads(json.dumps(graph_to_dict(graph))))
    assert json.dumps(graph_to_dict(again)) == json.dumps(graph_to_dict(graph))


def test_what_hangs_together_badly_is_no_graph(graph: Graph) -> None:
    values = json.loads(json.dumps(graph_to_dict(graph)))
    values["outputs"] = [99]
    with pytest.raises(ModelReadError):
        graph_from_dict(values)


def test_tensors_of_equal_shape_share_it(builder: Any) -> None:
    x = builder.input(builder.N, 7)
    builder.node(OpKind.RELU, [x], builder.N, 7)
    read = graph_from_dict(json.loads(json.dumps(graph_to_dict(builder.graph()))))
    assert read.tensors[0].shape is read.tensors[1].shape
