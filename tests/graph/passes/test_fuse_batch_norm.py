from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_batch_norm import fuse_batch_norm


def test_statistics_of_the_batch_itself_are_the_kernels_work(sketch, after) -> None:
    sketch.weight("x", 1, 8, 9).weight("s", 8).weight("b", 8)
    sketch.node("m", OpKind.REDUCE, "x", 8, function="mean", axes=(0, 2))
    sketch.node("v", OpKind.REDUCE, "x", 8, function="mean", axes=(0, 2))
    graph = sketch.node("y", OpKind.BATCH_NORM, "x s b m v").graph("y")
    assert after(fuse_batch_norm, graph) == [("batch_norm", "x s b")]


def test_stored_statistics_stay(sketch, after) -> None:
    sketch.input("x", Dim(1, 0), 8, 9)
    for name in "sbmv":
        sketch.weight(name, 8)
    graph = sketch.node("y", OpKind.BATCH_NORM, "x s b m v").graph("y")
    assert after(fuse_batch_norm, graph) == [("batch_norm", "x s b m v")]
