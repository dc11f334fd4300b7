from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_im2col import fuse_im2col

N = Dim(1, 0)


def windows(sketch, *, source: str, perm: tuple[int, ...] = (0, 1, 2, 4, 3, 5)):
    """Windows of 3 x 3 at 8 x 8 places."""
    sketch.weight("i", 3, 8)
    sketch.node("r", OpKind.GATHER, f"{source} i", N, 4, 3, 8, 10, axis=2)
    sketch.node("c", OpKind.GATHER, "r i", N, 4, 3, 8, 3, 8, axis=4)
    sketch.node("t", OpKind.VIEW, "c", N, 4, 3, 3, 8, 8, function="transpose", perm=perm)
    return sketch.node("y", OpKind.VIEW, "t", N, 36, 64, function="reshape")


@pytest.mark.parametrize("is_padded", [True, False])
def test_windows_are_one_copy(sketch, after, is_padded: bool) -> None:
    if is_padded:
        sketch.input("x", N, 4, 8, 8).node("p", OpKind.PAD, "x", N, 4, 10, 10)
    else:
        sketch.input("x", N, 4, 10, 10)
    graph = windows(sketch, source="p" if is_padded else "x").graph("y")
    assert after(fuse_im2col, graph) == [("copy", "x")]


def test_padded_image_that_is_used_elsewhere_stays(sketch, after) -> None:
    sketch.input("x", N, 4, 8, 8).node("p", OpKind.PAD, "x", N, 4, 10, 10)
    assert after(fuse_im2col, windows(sketch, source="p").graph("y", "p")) == [("pad", "x"), ("copy", "p")]


def test_another_order_stays(sketch, after) -> None:
    graph = windows(sketch.input("x", N, 4, 10, 10), source="x", perm=(0, 1, 4, 2, 3, 5)).graph("y")
    assert [kind for kind, _ in after(fuse_im2col, graph)] == ["gather", "gather", "view", "view"]


def test_a_reflected_border_is_no_part_of_it(sketch, after) -> None:
    sketch.input("x", N, 4, 8, 8).node("p", OpKind.PAD, "x", N, 4, 10, 10, mode="reflect")
    assert after(fuse_im2col, windows(sketch, source="p").graph("y")) == [("pad", "x"), ("copy", "p")]


def test_a_window_that_becomes_a_number_stays(sketch, after) -> None:
    windows(sketch.input("x", N, 4, 10, 10), source="x").tensor("z")
    sketch.nodes[-1] = replace(sketch.nodes[-1], outputs=(sketch.index["z"],))
    assert [kind for kind, _ in after(fuse_im2col, sketch.graph("z"))] == ["gather", "gather", "view", "view"]
