"""The memory of compiled training of a language model, beside logs of GPT-2 on many cards."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from dippm.costs.conditions import Conditions
from dippm.costs.software import Software
from dippm.datasets.published import read_configurations
from dippm.devices import DeviceSpec
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_published_runs
from dippm.graph import Graph
from dippm.predictors.physics import PhysicsPredictor

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER
SOURCE = "gpt2-runpod-cards"
WORDS, TOKENS, TOKENS_OF_A_STEP = 50_304, 1024, 524_288


@pytest.fixture(name="graph", scope="module")
def _graph() -> Graph:
    run = next(run for run in read_published_runs(FOLDER)[0] if run.row.source == SOURCE)
    return run.build_graph(read_configurations(FOLDER))


def measured() -> list[tuple[DeviceSpec, int, float]]:
    """Device, batch and what nvidia-smi shows, MiB, of each row whose device is known."""
    devices = {run.row.device: run.device for run in read_published_runs(FOLDER)[0] if run.row.source == SOURCE}
    with (FOLDER / "benchmarks.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"] == SOURCE and row["device"] in devices]
    return [(devices[row["device"]], int(row["batch"]), float(row["peak_memory_mb"])) for row in rows]


def memory_mb(graph: Graph, device: DeviceSpec, batch: int, software: str) -> float:
    """With the scores that a variable of the loop holds, 2 bytes each, while the next micro-batch runs."""
    (prediction,) = PhysicsPredictor.load().predict(
        graph,
        batches=[batch],
        devices=[device],
        conditions=Conditions.parse(
            precision="amp-bf16",
            mode="training",
            runtime="compile",
            optimizer="adamw",
            accumulation=TOKENS_OF_A_STEP // (TOKENS * batch),
        ),
        software=Software.parse(software),
    )
    return prediction.memory_mb + 2 * WORDS * TOKENS * batch / 2**20


def test_the_memory_is_that_of_the_logs(graph: Graph) -> None:
    rows = measured()
    assert len(rows) >= 30
    errors = [memory_mb(graph, device, batch, "torch 2.8") / mb - 1.0 for device, batch, mb in rows]
    assert max(map(abs, errors)) < 0.05


def test_a_softmax_that_is_kept_would_take_far_more(graph: Graph) -> None:
    """As the rules of 2.3 have it, which no release for the newest cards follows."""
    old = [row for row in measured() if row[0].architecture == "ampere"]
    assert len(old) >= 10
    for device, batch, mb in old:
        assert memory_mb(graph, device, batch, "torch 2.3") > 1.3 * mb
