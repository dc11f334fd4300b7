from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dippm
from dippm.api.needed_memory import needed_of
from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    builder.node(OpKind.RELU, [builder.input(builder.N, 1024)], builder.N, 1024)
    return builder.graph()


def test_what_is_needed_goes_before_what_is_held(graph: Graph) -> None:
    prediction = dippm.predict(graph, batch=8)
    assert needed_of(replace(prediction, needed_mb=(1.0, 2.0))) == (1.0, 2.0)
    assert needed_of(replace(prediction, needed_mb=None)) == prediction.intervals["memory_mb"]


@pytest.mark.parametrize(("memory_mb", "lacking"), [(None, "no memory, as its labels had none"), (7.0, "no interval")])
def test_without_an_interval_nobody_knows(graph: Graph, memory_mb: float | None, lacking: str) -> None:
    prediction = replace(dippm.predict(graph), memory_mb=memory_mb, intervals={}, needed_mb=None)
    with pytest.raises(UnsupportedError, match=lacking) as caught:
        needed_of(prediction)
    assert caught.value.code == "prediction.no_interval"
