"""Small graphs: files of them for sweeps, and one that can be trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.api import sweep_plan
from dippm.graph import Graph, Node, OpKind


@pytest.fixture(name="graph_files")
def _graph_files(tmp_path: Path, new_builder: Callable[[], Any]) -> list[str]:
    """Files of six small graphs, sorted; the first has one operator, the next two."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for number in range(6):
        builder = new_builder()
        value = builder.input(builder.N, 64)
        for _ in range(number + 1):
            value = builder.node(OpKind.LINEAR, [value, builder.weight(64, 64)], builder.N, 64)
        dippm.save_graph(builder.graph(), folder / f"{number}.json.gz")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(name="small_parts")
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks to a part."""
    monkeypatch.setattr(sweep_plan, "_TASKS_PER_PART", 2)


@pytest.fixture(name="classifier")
def _classifier(builder: Any) -> Graph:
    """A convolution and a linear layer, which can be trained."""
    n = builder.N
    x = builder.input(n, 3, 64, 64)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 3, 3, 3)], n, 64, 64, 64, **square)
    x = builder.node(OpKind.RELU, [x], n, 64, 64, 64)
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 64, 1, 1, output_size=(1, 1))
    flat = builder.tensor(n, 64, alias_of=x)
    builder.nodes.append(Node(kind=OpKind.VIEW, inputs=(x,), outputs=(flat,), attributes={"function": "view"}))
    return builder.graph(builder.node(OpKind.LINEAR, [flat, builder.weight(10, 64)], n, 10))
