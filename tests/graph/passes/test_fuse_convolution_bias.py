from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_convolution_bias import fuse_convolution_bias

N = Dim(1, 0)
IMAGE, RESULT = (N, 3, 8, 8), (N, 16, 8, 8)


def convolution(sketch, kind=OpKind.CONV):
    return sketch.input("x", *IMAGE).weight("w", 16, 3, 3, 3).node("c", kind, "x w", *RESULT)


@pytest.mark.parametrize("kind", [OpKind.CONV, OpKind.CONV_TRANSPOSE])
@pytest.mark.parametrize("order", ["c v", "v c"])
def test_a_reshaped_bias_is_the_convolution_s(sketch, after, kind, order) -> None:
    convolution(sketch, kind).weight("b", 16).node("v", OpKind.VIEW, "b", 1, 16, 1, 1, function="reshape")
    graph = sketch.node("y", OpKind.ADD, order, *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph) == [(kind.value, "x w b")]


@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (16, 1, 1)])
def test_a_bias_stored_in_shape(sketch, after, shape) -> None:
    graph = convolution(sketch).weight("b", *shape).node("y", OpKind.ADD, "c b", *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph) == [("conv", "x w b")]


@pytest.mark.parametrize(("result", "is_biased"), [((N, 16, 8), True), ((N, 8, 16), False), ((N, 16, 2, 4), False)])
def test_the_bias_of_a_convolution_of_one_dimension(sketch, after, result, is_biased) -> None:
    sketch.input("x", N, 3, 1, 8).weight("w", 16, 3, 1, 3).node("c", OpKind.CONV, "x w", N, 16, 1, 8)
    sketch.node("v", OpKind.VIEW, "c", *result, function="reshape")
    sketch.weight("b", result[1], *[1] * (len(result) - 2))
    graph = sketch.node("y", OpKind.ADD, "v b", *result).graph("y")
    expected = [("conv", "x w b"), ("view", "c")] if is_biased else [("conv", "x w"), ("view", "c"), ("add", "v b")]
    assert after(fuse_convolution_bias, graph) == expected


@pytest.mark.parametrize("shape", [(8,), (1, 1, 8, 8), (16, 8, 8), (1, 16, 8, 8)])
def test_an_addend_that_is_no_number_per_channel_stays(sketch, after, shape) -> None:
    graph = convolution(sketch).weight("b", *shape).node("y", OpKind.ADD, "c b", *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph) == [("conv", "x w"), ("add", "c b")]


def test_a_computed_addend_stays(sketch, after) -> None:
    convolution(sketch).input("e", N, 16, 1, 1)
    graph = sketch.node("y", OpKind.ADD, "c e", *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph) == [("conv", "x w"), ("add", "c e")]


def test_a_result_that_is_also_used_without_the_bias_stays(sketch, after) -> None:
    graph = convolution(sketch).weight("b", 16, 1, 1).node("y", OpKind.ADD, "c b", *RESULT).graph("y", "c")
    assert after(fuse_convolution_bias, graph) == [("conv", "x w"), ("add", "c b")]


def test_a_convolution_has_one_bias(sketch, after) -> None:
    convolution(sketch).weight("a", 16, 1, 1).weight("b", 16, 1, 1)
    graph = sketch.node("m", OpKind.ADD, "c a", *RESULT).node("y", OpKind.ADD, "m b", *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph) == [("conv", "x w a"), ("add", "m b")]


@pytest.mark.parametrize(("result", "bias"), [((16,), (16,)), ((N,), (1,)), ((N, 16), (16,))])
def test_a_sum_that_has_no_channels_stays(sketch, after, result, bias) -> None:
    sketch.input("x", *result).node("r", OpKind.RELU, "x", *result).weight("b", *bias)
    graph = sketch.node("y", OpKind.ADD, "r b", *result).graph("y")
    assert after(fuse_convolution_bias, graph) == [("relu", "x"), ("add", "r b")]


def test_a_bias_that_is_cast_and_reshaped_more_than_once(sketch, after) -> None:
    convolution(sketch).weight("b", 16).node("h", OpKind.CAST, "b")
    sketch.node("u", OpKind.VIEW, "h", 1, 1, 1, 16, function="reshape")
    sketch.node("v", OpKind.VIEW, "u", 1, 16, 1, 1, function="reshape")
    graph = sketch.node("y", OpKind.ADD, "c v", *RESULT).graph("y")
    assert after(fuse_convolution_bias, graph)[-1] == ("conv", "x w h")


@pytest.mark.parametrize("is_before", [True, False])
def test_a_bias_of_one_dimension_is_taken_where_it_is_cast_before(sketch, after, is_before) -> None:
    sketch.input("x", N, 3, 1, 8).weight("w", 16, 3, 1, 3).weight("b", 16)
    if is_before:
        sketch.node("h", OpKind.CAST, "b")
    sketch.node("c", OpKind.CONV, "x w", N, 16, 1, 8).node("v", OpKind.VIEW, "c", N, 16, 8, function="reshape")
    if not is_before:
        sketch.node("h", OpKind.CAST, "b")
    sketch.node("u", OpKind.VIEW, "h", 1, 16, 1, function="reshape")
    graph = sketch.node("y", OpKind.ADD, "v u", N, 16, 8).graph("y")
    assert (("conv", "x w h") in after(fuse_convolution_bias, graph)) is is_before
