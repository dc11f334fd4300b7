"""Exact integer programs against trying everything."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.placement.integer_program import Row, minimize

MOST = 4


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[Row]]:
    count = draw(st.integers(1, 4))
    costs = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    weights = st.lists(st.integers(-3, 4), min_size=count, max_size=count)
    rows = [
        Row(weights=dict(enumerate(draw(weights))), at_least=draw(st.integers(-6, 12)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    # Bounds, so that everything can be tried.
    return costs, [*rows, *(Row(weights={variable: -1}, at_least=-MOST) for variable in range(count))]


def holds(values: tuple[int, ...], rows: list[Row]) -> bool:
    return all(sum(weight * values[column] for column, weight in row.weights.items()) >= row.at_least for row in rows)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_against_trying_everything(program: tuple[list[int], list[Row]]) -> None:
    costs, rows = program
    every = [
        sum(cost * value for cost, value in zip(costs, values, strict=True))
        for values in product(range(MOST + 1), repeat=len(costs))
        if holds(values, rows)
    ]
    found = minimize(costs, rows, whole=range(len(costs)), most_steps=10_000)
    assert found.is_proved
    assert found.cost == min(every, default=None)
    if found.values is not None:
        assert holds(found.values, rows)
        assert sum(cost * value for cost, value in zip(costs, found.values, strict=True)) == found.cost


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(0, 6))
def test_a_bound_holds_however_early_the_search_ends(program: tuple[list[int], list[Row]], steps: int) -> None:
    costs, rows = program
    best = minimize(costs, rows, whole=range(len(costs)), most_steps=10_000).cost
    early = minimize(costs, rows, whole=range(len(costs)), most_steps=steps)
    if best is not None:
        assert early.cost_at_least is not None
        assert early.cost_at_least <= best
        assert early.cost is None or early.cost >= best
    if early.is_proved:
        assert early.cost == best
