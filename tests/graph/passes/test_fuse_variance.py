from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_variance import fuse_variance

N = Dim(1, 0)


@pytest.fixture(name="mean")
def _mean(sketch):
    """The mean of squared differences, as both of PyTorch's exporters write it."""
    return (
        sketch.input("x", N, 8)
        .node("m", OpKind.REDUCE, "x", N, 1, function="mean", axes=(1,))
        .node("c", OpKind.SUB, "x m")
        .node("s", OpKind.MUL, "c c")
        .node("v", OpKind.REDUCE, "s", N, 1, function="mean", axes=(1,))
    )


def _corrected(mean):
    return mean.node("p", OpKind.MUL, "v", scalar=8.0).node("q", OpKind.DIV, "p", scalar=7.0)


def test_a_variance_is_one_reduction(mean, after) -> None:
    assert after(fuse_variance, mean.graph("v")) == [("reduce", "x")]


def test_a_deviation_is_one_reduction(mean, after) -> None:
    graph = _corrected(mean).node("r", OpKind.UNARY, "q", function="sqrt").graph("r")
    assert after(fuse_variance, graph) == [("reduce", "x")]


@pytest.mark.parametrize("is_corrected", [True, False])
def test_what_follows_a_variance_stays(mean, after, is_corrected: bool) -> None:
    name = "q" if is_corrected else "v"
    graph = (_corrected(mean) if is_corrected else mean).node("y", OpKind.ADD, name, scalar=1e-5).graph("y")
    assert after(fuse_variance, graph) == [("reduce", "x"), ("add", name)]


def test_a_product_without_a_quotient_stays(mean, after) -> None:
    graph = mean.node("p", OpKind.MUL, "v", scalar=8.0).graph("p")
    assert after(fuse_variance, graph) == [("reduce", "x"), ("mul", "v")]


def test_a_norm_that_is_written_out_stays(mean, after) -> None:
    graph = mean.node("y", OpKind.DIV, "c v").graph("y")
    assert [kind for kind, *_ in after(fuse_variance, graph)] == ["reduce", "sub", "mul", "reduce", "div"]


def test_differences_from_another_mean_stay(sketch, after) -> None:
    graph = (
        sketch.input("x", N, 8)
        .node("m", OpKind.REDUCE, "x", 1, 8, function="mean", axes=(0,))
        .node("c", OpKind.SUB, "x m")
        .node("s", OpKind.MUL, "c c")
        .node("v", OpKind.REDUCE, "s", N, 1, function="mean", axes=(1,))
        .graph("v")
    )
    assert [kind for kind, *_ in after(fuse_variance, graph)] == ["reduce", "sub", "mul", "reduce"]
