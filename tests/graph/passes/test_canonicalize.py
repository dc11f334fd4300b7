"""The passes in their order: what one puts together the next finds, and a second time changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.canonicalize import CONVERTED_FUSIONS, FUSIONS, canonicalize

N = Dim(1, 0)


@pytest.fixture(name="block")
def _block(sketch):
    """A product and its bias, a gate written out, something that nothing reads, and a weight that never was read."""
    sketch.input("x", N, 6, 16).weight("w", 16, 32).weight("b", 32).weight("unused", 7).weight("idle", 9)
    sketch.node("product", OpKind.LINEAR, "x w", N, 6, 32).node("sum", OpKind.ADD, "product b", N, 6, 32)
    sketch.node("share", OpKind.SIGMOID, "sum").node("y", OpKind.MUL, "sum share").node(
        "lost", OpKind.RELU, "unused", 7
    )
    return sketch.graph("y")


def test_decomposed_operators_are_whole_and_the_rest_goes(block) -> None:
    graph = canonicalize(block)
    assert [node.kind for node in graph.nodes] == [OpKind.LINEAR, OpKind.SILU]
    assert [tensor.name for tensor in graph.tensors if tensor.role.value == "parameter"] == ["w", "b", "idle"]
    assert [graph.tensors[index].name for index in graph.outputs] == ["y"]


@pytest.mark.parametrize("is_converted", [False, True])
def test_a_second_time_changes_nothing(block, is_converted: bool) -> None:
    once = canonicalize(block, is_converted=is_converted)
    assert canonicalize(once, is_converted=is_converted) == once


def test_what_a_converter_adds_goes_only_where_there_was_one(sketch) -> None:
    sketch.input("x", N, 6, 4, 4)
    sketch.node("a", OpKind.VIEW, "x", N, 4, 4, 6, function="transpose", perm=(0, 2, 3, 1))
    sketch.node("b", OpKind.RELU, "a").node("c", OpKind.VIEW, "b", N, 6, 4, 4, function="transpose", perm=(0, 3, 1, 2))
    sketch.node("y", OpKind.TANH, "c")
    graph = sketch.graph("y")
    kept, converted = canonicalize(graph), canonicalize(graph, is_converted=True)
    count = [sum(node.kind is OpKind.VIEW for node in each.nodes) for each in (kept, converted)]
    assert count[0] == 2
    assert count[1] <= count[0]


def test_what_the_reader_found_out_stays(block) -> None:
    noted = replace(block, warnings=("Mind this.",), unsupported_ops={"a.b": 1}, fixed_batch=None)
    graph = canonicalize(noted)
    assert (graph.warnings, graph.unsupported_ops) == (("Mind this.",), {"a.b": 1})


def test_each_pass_stands_once() -> None:
    passes = [*CONVERTED_FUSIONS, *FUSIONS]
    assert len(set(passes)) == len(passes)
