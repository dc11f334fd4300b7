"""Live tensors of several models at once; of one they are followed by hand in test_timeline.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from dippm.costs import GraphSizes, LiveMemory, MemoryTimeline, Precision, Purpose, Workload, live_memory
from dippm.costs.conditions import Optimizer
from dippm.costs.live_tensors import live_memory_each
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.graph import Graph, OpKind


def _network(builder: Any, *, widths: tuple[int, ...], side: int) -> Graph:
    x = builder.input(builder.N, 1, side, side)
    settings = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
    for channels, width in zip((1, *widths), widths, strict=False):
        x = builder.node(
            OpKind.CONV, [x, builder.weight(width, channels, 3, 3)], builder.N, width, side, side, **settings
        )
        x = builder.node(OpKind.TANH, [x], builder.N, width, side, side)
    return builder.graph(x)  # type: ignore[no-any-return]


def _figures(live: LiveMemory) -> dict[str, list[Any]]:
    return {each.name: getattr(live, each.name).tolist() for each in fields(LiveMemory)}


def test_models_side_by_side_have_the_memory_of_each(new_builder: Callable[[], Any]) -> None:
    graphs = [_network(new_builder(), widths=widths, side=9) for widths in ((3,), (8, 2, 16), (5, 5))]
    together = MemoryTimeline.of_each(Workload.from_sizes(GraphSizes.from_graphs(graphs), Precision.AMP))
    step = make_training_graph(graphs[0], TrainingSettings(optimizer=Optimizer.ADAM, precision=Precision.FP32))
    idle = new_builder()
    idle.graph(idle.input(idle.N, 4))
    timelines = [
        *together,
        MemoryTimeline.from_workload(Workload.from_graph(step.graph)),
        MemoryTimeline.from_workload(Workload.from_graph(idle.graph())),
    ]
    for without in (frozenset[Purpose](), frozenset({Purpose.LAYOUT_HALF, Purpose.GROUPED_HALF})):
        found = live_memory_each(timelines, [1, 7, 64], without=without)
        for timeline, live in zip(timelines, found, strict=True):
            assert _figures(live) == _figures(live_memory(timeline, [1, 7, 64], without=without))
    assert found[3].state_bytes.min() > 0.0
    assert found[4].peak_node.tolist() == [-1, -1, -1]
    assert found[4].peak_bytes.tolist() == [16.0, 112.0, 1024.0]
    assert found[4].live_bytes.shape == (3, 0)


def test_the_parts_of_the_peak_add_up(new_builder: Callable[[], Any]) -> None:
    graph = _network(new_builder(), widths=(8, 2, 16), side=9)
    live = live_memory(MemoryTimeline.from_workload(Workload.from_graph(graph)), [1, 7], without=frozenset())
    parts = ("weight", "gradient", "state", "cache", "workspace", "activation")
    total = np.sum([getattr(live, f"{part}_bytes") for part in parts], axis=0)
    assert total.tolist() == live.peak_bytes.tolist() == live.live_bytes.max(axis=1).tolist()
    assert live_memory_each([], [1]) == []
