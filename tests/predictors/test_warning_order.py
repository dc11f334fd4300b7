from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dippm
from dippm.graph import Graph, OpKind
from dippm.predictors.warning_order import order_warnings

# Each begins one place of the order.
BEGINNINGS = (
    "It does not fit:",
    "Operators without a rule of their own",
    "No whole model was measured on",
    "The memory interval rests on",
    "Energy comes from",
)


def _graph(new_builder: Callable[[], Any], *, width: int) -> Graph:
    builder = new_builder()
    value = builder.input(builder.N, width)
    value = builder.node(OpKind.UNKNOWN, [value], builder.N, width)
    value = builder.node(OpKind.LINEAR, [value, builder.weight(width, width)], builder.N, width)
    return replace(builder.graph(), unsupported_ops={"own.Op": 1})


def _places(warnings: tuple[str, ...]) -> list[int]:
    return [place for warning in warnings for place, start in enumerate(BEGINNINGS) if warning.startswith(start)]


def test_what_costs_most_comes_first(new_builder: Callable[[], Any]) -> None:
    graph = _graph(new_builder, width=2**16)
    every = list(range(len(BEGINNINGS)))
    slice_ = "1g.6gb@A30"
    assert _places(dippm.predict(graph, device=slice_).warnings) == every
    assert _places(dippm.predict(graph, device=[slice_])[0].warnings) == every
    assert _places(dippm.fits(graph, device=slice_).prediction.warnings) == every
    assert _places(dippm.max_batch(graph, device=slice_).prediction.warnings) == every
    inspection = dippm.inspect(graph, device=slice_)
    assert _places(inspection.prediction.warnings) == every
    said: Any = dippm.predict(graph, device=slice_).to_dict()
    assert _places(tuple(said["predictor"]["warnings"])) == every


def test_nothing_is_lost_and_equals_keep_their_order() -> None:
    given = (
        "b",
        "The device waits for the host 30 %",
        "a",
        "It may not fit: x",
        "It does not fit: y",
        "It may not fit: w",
    )
    assert order_warnings(given) == (
        "It does not fit: y", "It may not fit: x", "It may not fit: w", "b", "a", "The device waits for the host 30 %"
    )  # fmt: skip
    assert order_warnings(()) == ()
