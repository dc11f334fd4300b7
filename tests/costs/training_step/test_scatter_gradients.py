"""Gradients of scatters: what FunctionsManual.cpp runs for those that add, average or take the largest."""

from __future__ import annotations

from typing import Any

import pytest

import dippm
from dippm.costs.training_step.scatter_gradients import REDUCTION
from dippm.graph import DType, OpKind

LOOKUPS = {"scatter_reduce": ("gather", "scatter_add"), "index_reduce": ("index_select", "index_add")}


def _backward(builder: Any, gradients_of: Any, function: str, **attributes: Any) -> list[tuple[OpKind, str]]:
    n = builder.N
    values = builder.node(OpKind.LINEAR, [builder.input(n, 8, 16), builder.weight(16, 16)], n, 8, 16)
    index = builder.input(n, 8, 16, dtype=DType.INT64)
    table = builder.node(OpKind.FILL, [], n, 4, 16)
    reduced = builder.node(OpKind.SCATTER, [table, index, values], n, 4, 16, function=function, **attributes)
    builder.node(OpKind.LINEAR, [reduced, builder.weight(10, 16)], n, 4, 10)
    return [(node.kind, str(node.attributes.get("function", ""))) for node in gradients_of(builder.graph(), 2)]


def test_what_is_added_gets_the_gradient_of_its_place(builder: Any, gradients_of: Any) -> None:
    assert _backward(builder, gradients_of, "scatter_add") == [(OpKind.GATHER, "gather")]


@pytest.mark.parametrize(
    ("function", "expected"),
    [("index_add", []), ("scatter_add", []), ("index_copy", [(OpKind.COPY, "clone")])],
)
def test_a_table_that_is_added_to_gets_the_gradient_itself(
    builder: Any, gradients_of: Any, function: str, expected: list[tuple[OpKind, str]]
) -> None:
    n = builder.N
    table = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    added = builder.node(
        OpKind.SCATTER, [table, builder.input(n, dtype=DType.INT64), builder.input(n, 16)], n, 16, function=function
    )
    builder.node(OpKind.LINEAR, [added, builder.weight(10, 16)], n, 10)
    found = [(node.kind, str(node.attributes.get("function", ""))) for node in gradients_of(builder.graph(), 1)]
    assert found == expected


@pytest.mark.parametrize("function", LOOKUPS)
def test_a_mean_counts_what_met_at_each_place(builder: Any, gradients_of: Any, function: str) -> None:
    lookup, addition = LOOKUPS[function]
    found = _backward(builder, gradients_of, function, **{REDUCTION: "mean"})
    assert found.count((OpKind.GATHER, lookup)) == 2
    assert found.count((OpKind.SCATTER, addition)) == 1
    assert found[-1] == (OpKind.DIV, "")


@pytest.mark.parametrize("reduction", ["amax", "amin"])
@pytest.mark.parametrize("function", LOOKUPS)
def test_the_largest_share_their_gradient(builder: Any, gradients_of: Any, function: str, reduction: str) -> None:
    lookup, addition = LOOKUPS[function]
    found = _backward(builder, gradients_of, function, **{REDUCTION: reduction})
    assert found.count((OpKind.GATHER, lookup)) == 2
    assert found.count((OpKind.SCATTER, addition)) == 1
    assert [kind for kind, _ in found].count(OpKind.CAST) == 2
    assert found[-1] == (OpKind.MUL, "")


def test_the_gradient_of_a_mean_over_edges_takes_four_times_their_messages() -> None:
    """They are kept, and the counts and the gradient at each edge and their quotient are as large as they are."""
    torch = pytest.importorskip("torch")
    nodes, edges, width = 1000, 64_000, 64

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(width, width)

        def forward(self, x, source, target):
            messages = self.linear(x)[source]
            return x.new_zeros(x.shape).index_reduce(0, target, messages, "mean")

    given = [((nodes, width), "unbatched"), *[((edges,), "int64", "unbatched")] * 2]
    found = dippm.inspect(Mean(), input=given, mode="training", optimizer="none", device="A100")
    peak = max(operator.live_mb for operator in found.operators)
    assert peak / (edges * width * 4 / 2**20) == pytest.approx(4, rel=0.15)
