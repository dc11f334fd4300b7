"""Where the batch of the file stands in a graph for every batch."""

from __future__ import annotations

import pytest

from dippm.graph import Dim, Node, OpKind
from dippm.graph.passes.held_batch import find_held_batch

N = Dim(1, 0)


def test_a_repeated_table_that_a_layer_takes(sketch) -> None:
    sketch.input("x", N, 64).weight("table", 1, 64).weight("w", 8, 64)
    sketch.node("repeated", OpKind.COPY, "table", 2, 64, function="repeat").node("r", OpKind.RELU, "repeated")
    graph = sketch.node("y", OpKind.LINEAR, "r w", 2, 8).graph("y")
    held = find_held_batch(graph, 2)
    assert held is not None
    assert (held.origin, held.axis, held.is_written) == (sketch.index["repeated"], 0, True)
    assert "linear takes [2, 64] at every batch, of which 2 samples are written into copy" in held.reason
    assert find_held_batch(graph, 3) is None


def test_a_table_repeated_in_another_dimension(sketch) -> None:
    sketch.input("x", N, 64).weight("table", 5, 1, 64).weight("w", 8, 64)
    sketch.node("repeated", OpKind.VIEW, "table", 5, 4, 64, function="expand")
    held = find_held_batch(sketch.node("y", OpKind.LINEAR, "repeated w", 5, 4, 8).graph("y"), 4)
    assert held is not None
    assert held.axis == 1


@pytest.mark.parametrize("kind", [OpKind.GATHER, OpKind.EMBEDDING, OpKind.CONCAT])
def test_a_batch_that_an_operator_loses(sketch, kind: OpKind) -> None:
    held = find_held_batch(sketch.input("x", N, 64).node("y", kind, "x", 4, 64).graph("y"), 4)
    assert held is not None
    assert not held.is_written
    assert "an output is of shape [4, 64]" in held.reason


def test_a_state_that_the_file_stores(sketch) -> None:
    sketch.input("x", N, 64).weight("zeros", 2, 64).weight("w", 8, 64)
    graph = sketch.node("y", OpKind.LINEAR, "zeros w", 2, 8).graph("y")
    assert find_held_batch(graph, 2) is None
    held = find_held_batch(graph, 2, made_up=[sketch.index["zeros"]])
    assert held is not None
    assert "'zeros'" in held.reason


def test_what_is_rightly_of_one_size(sketch) -> None:
    sketch.input("x", N, 64).weight("table", 2, 64).weight("w", 64, 64)
    # A table of the model, whatever its size; its layer; a loss and two of them; what grows beside a constant.
    sketch.node("positions", OpKind.LINEAR, "table w", 2, 64)
    sketch.node("loss", OpKind.REDUCE, "x", axes=(0, 1))
    sketch.tensor("unused").node("mean", OpKind.REDUCE, "x", 1, axes=(0, 1))
    sketch.node("losses", OpKind.CONCAT, "mean mean", 2, axis=0)
    sketch.node("gram", OpKind.MATMUL, "x x", 2, 2)
    sketch.node("zeros", OpKind.VIEW, "table", 2, 64, function="expand").node("sum", OpKind.ADD, "x zeros", N, 64)
    # A range as long as the batch is large, and a plane of as many columns, as positions have them.
    sketch.tensor("range", 2)
    sketch.nodes.append(Node(kind=OpKind.FILL, inputs=(), outputs=(sketch.index["range"],)))
    sketch.node("plane", OpKind.VIEW, "range", 3, 2, function="expand")
    sketch.node("code", OpKind.LINEAR, "plane w", 3, 64)
    graph = sketch.graph("code", "positions", "loss", "losses", "gram", "sum")
    assert find_held_batch(graph, 2) is None
    assert find_held_batch(graph, 1) is None
