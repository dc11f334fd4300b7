"""Files of small graphs, for sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.api import sweep_plan
from dippm.graph import OpKind


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
