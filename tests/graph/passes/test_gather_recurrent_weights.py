from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.passes.gather_recurrent_weights import gather_recurrent_weights

N = Dim(1, 0)


def test_reordered_weights_are_read_as_they_are_stored(sketch, after) -> None:
    sketch.input("x", 20, N, 8).weight("w", 64, 8).weight("r", 1, 64, 16)
    sketch.node("a", OpKind.VIEW, "w", 32, 8, function="slice").node("b", OpKind.VIEW, "w", 32, 8, function="slice")
    sketch.node("c", OpKind.CONCAT, "b a", 64, 8, axis=0).node("d", OpKind.VIEW, "c", 1, 64, 8, function="reshape")
    graph = sketch.node("y", OpKind.LSTM, "x d r", 20, 1, N, 16).graph("y")
    assert after(gather_recurrent_weights, graph) == [("lstm", "x w r")]


def test_computed_state_stays(sketch, after) -> None:
    sketch.input("x", 20, N, 8).weight("w", 1, 64, 8).node("h", OpKind.RELU, "x")
    graph = sketch.node("y", OpKind.LSTM, "x h w", 20, 1, N, 16).graph("y")
    assert after(gather_recurrent_weights, graph) == [("relu", "x"), ("lstm", "x h w")]
