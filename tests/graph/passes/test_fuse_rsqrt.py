from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_rsqrt import fuse_rsqrt

N = Dim(1, 0)


@pytest.fixture(name="root")
def _root(sketch):
    return sketch.input("x", N, 8).node("r", OpKind.UNARY, "x", function="sqrt")


@pytest.mark.parametrize("is_written_as_division", [True, False])
def test_one_by_the_root_is_one_operator(root, after, is_written_as_division: bool) -> None:
    if is_written_as_division:
        root.node("y", OpKind.DIV, "r", scalar=1.0, scalar_first=True)
    else:
        root.node("y", OpKind.UNARY, "r", function="reciprocal")
    assert after(fuse_rsqrt, root.graph("y")) == [("unary", "x")]


@pytest.mark.parametrize("attributes", [{"scalar": 2.0, "scalar_first": True}, {"scalar": 1.0}])
def test_other_divisions_stay(root, after, attributes) -> None:
    graph = root.node("y", OpKind.DIV, "r", **attributes).graph("y")
    assert after(fuse_rsqrt, graph) == [("unary", "x"), ("div", "r")]


def test_root_that_is_used_elsewhere_stays(root, after) -> None:
    graph = root.node("y", OpKind.UNARY, "r", function="reciprocal").graph("y", "r")
    assert after(fuse_rsqrt, graph) == [("unary", "x"), ("unary", "r")]
