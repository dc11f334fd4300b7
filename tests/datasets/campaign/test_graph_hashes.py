from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dippm.datasets.campaign import graph_hashes
from dippm.datasets.campaign.graph_hashes import GraphHash, GraphHashes

# Answers like the real process, by a rule on the width of the model.
PROCESS = """
import json, os, sys, time
for line in sys.stdin:
    recipe = json.loads(line)
    width = recipe["arguments"]["width"]
    if width == 1:
        os._exit(3)
    if width == 2:
        time.sleep(60)
    sys.stdout.write(json.dumps({"model_key": str(width), "graph_hash": f"hash{width}", "error": ""}) + "\\n")
    sys.stdout.flush()
"""


def collect(graphs: GraphHashes) -> list[GraphHash]:
    found: list[GraphHash] = []
    deadline = time.monotonic() + 20
    while graphs.pending:
        assert time.monotonic() < deadline
        found += graphs.advance(wait_s=0.05)
    return found


@pytest.fixture
def fake_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "process.py"
    program.write_text(PROCESS, encoding="utf-8")
    monkeypatch.setattr(graph_hashes, "_COMMAND", (sys.executable, str(program)))


@pytest.mark.usefixtures("fake_process")
def test_a_process_that_dies_or_hangs_costs_one_model(recipes: Any) -> None:
    models = recipes(5, batches=(1, 2))
    with GraphHashes(limit_s=2.0) as graphs:
        for recipe in models:
            graphs.add(recipe)
        assert graphs.pending == 5
        found = {result.model_key: result for result in collect(graphs)}
        assert graphs.advance() == []
    keys = [recipe.model_key for recipe in models[::2]]
    assert [found[name].graph_hash for name in ("0", "3", "4")] == ["hash0", "hash3", "hash4"]
    assert "died" in found[keys[1]].error
    assert "2 s" in found[keys[2]].error


@pytest.mark.usefixtures("fake_process")
def test_leaving_it_ends_the_process_at_once(recipes: Any) -> None:
    began = time.monotonic()
    with GraphHashes() as graphs:
        graphs.add(recipes(3, batches=(1,))[2])
        assert graphs.advance(wait_s=0.1) == []
    assert time.monotonic() - began < 10


def test_nothing_is_started_for_nothing() -> None:
    with GraphHashes() as graphs:
        assert graphs.advance(wait_s=1.0) == []
        assert graphs.pending == 0


def test_the_real_process_says_why_a_model_has_no_graph(recipes: Any) -> None:
    with GraphHashes() as graphs:
        graphs.add(recipes(1, batches=(1,))[0])
        (result,) = collect(graphs)
    assert result.graph_hash == ""
    assert "test:net" in result.error
