"""A campaign with the real measuring process and the real store, over models of every bad kind."""

from __future__ import annotations

from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

import dippm.datasets.campaign.run as campaign_run
from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.graph_hashes import GraphHashes
from dippm.datasets.campaign.plan import Plan, Request, make_plan
from dippm.datasets.campaign.report import CampaignReport
from dippm.datasets.campaign.run import Campaign
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label_store import LabelStore
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.device_names import describe_device
from dippm.measuring.measurement import Outcome
from dippm.measuring.protocol import Plan as Protocol
from dippm.measuring.worker import Worker

QUICK = Protocol(warmup_runs=2, timed_runs=3, budget_s=2.0, energy_window_s=0.01)
# Written to a folder on the path, so that the measuring process can import it by name.
SOURCES = """
import os, time
from dataclasses import dataclass
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        if self.kind == "hangs":
            time.sleep(1000)
        elif self.kind == "raises":
            raise RuntimeError("this layer does not work")
        elif self.kind == "dies":
            os.abort()
        elif self.kind == "full" and len(x) >= 2:
            return torch.ones(2**34)
        elif self.kind == "nan":
            return y * float("nan")
        return y


@dataclass(frozen=True)
class Source:
    recipe: object

    @property
    def name(self):
        return self.recipe.family

    @property
    def model_key(self):
        return self.recipe.model_key

    def build(self, device):
        return Net(self.recipe.family).eval().to(device), self.recipe.inputs
"""
KINDS = ("fine", "raises", "dies", "full", "nan", "hangs", "fine again")
EXPECTED = {
    ("fine", 1): Outcome.OK,
    ("fine", 2): Outcome.OK,
    ("raises", 1): Outcome.FAILED,
    ("dies", 1): Outcome.FAILED,
    ("full", 1): Outcome.OK,
    ("full", 2): Outcome.OUT_OF_MEMORY,
    ("nan", 1): Outcome.NOT_FINITE,
    ("hangs", 1): Outcome.TIMED_OUT,
    ("fine again", 1): Outcome.OK,
    ("fine again", 2): Outcome.OK,
}


def recipe(kind: str, batch: int) -> Recipe:
    inputs = InputShapes(positional=(InputEntry(shape=(8,)),))
    return Recipe(collection="bad", family=kind, architecture=f"bad:{kind}", inputs=inputs, batch=batch)


def bad_plan() -> Plan:
    batches = {"fine": (1, 2), "fine again": (1, 2), "full": (1, 2, 4)}
    recipes = [recipe(kind, batch) for kind in KINDS for batch in batches.get(kind, (1,))]
    return make_plan(recipes, [Request(conditions=Conditions())], device=describe_device("cpu"))


def run(plan: Plan, store: Path) -> CampaignReport:
    with (
        LabelStore.open(store) as labels,
        Worker("cpu", configuration_limit_s=10.0, plan=QUICK, memory_limit_mb=4096) as worker,
    ):
        return Campaign(plan, measurer=worker, store=labels, known=labels.labels()).run()


@pytest.mark.slow
def test_models_of_every_bad_kind_are_rows_and_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dippm_bad_models.py").write_text(SOURCES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    monkeypatch.setattr(campaign_run, "RecipeSource", import_module("dippm_bad_models").Source)
    plan, store = bad_plan(), tmp_path / "labels.sqlite"
    report = run(plan, store)
    with LabelStore.open(store) as labels:
        rows = [label for label in labels.labels() if label.repeat == 0]
    assert {(row.recipe.family, row.recipe.batch): row.measurement.outcome for row in rows} == EXPECTED
    assert {row.measurement.device for row in rows} == {plan.device}
    assert all(row.measurement.message for row in rows if row.measurement.outcome is not Outcome.OK)
    assert (report.not_tried, report.remaining) == (1, 0)
    # Resuming finds the same table complete, and starts nothing.
    again = run(plan, store)
    assert (again.measured, again.found, again.not_tried, again.busy_s) == (0, report.measured, 1, 0.0)


@pytest.mark.slow
def test_recipes_of_a_collection_end_up_as_labels_with_their_graph(tmp_path: Path) -> None:
    recipes = load_collection("cpu-small")[:4]
    requests = [
        Request(conditions=Conditions()),
        Request(conditions=Conditions.parse(mode="training", optimizer="sgd")),
    ]
    plan = make_plan(recipes, requests, device=describe_device("cpu"))
    with (
        LabelStore.open(tmp_path / "labels.sqlite") as store,
        Worker("cpu", configuration_limit_s=60.0, plan=QUICK) as worker,
        GraphHashes() as graphs,
    ):
        report = Campaign(plan, measurer=worker, store=store, graphs=graphs, graphs_beside=False).run()
        labels = list(store.labels())
    assert {label.key for label in labels} == {task.key for task in plan.tasks()}
    assert {label.measurement.outcome for label in labels} == {Outcome.OK}
    models = {label.recipe.model_key for label in labels}
    assert report.graphs == len(models)
    assert {len(label.graph_hash) for label in labels} == {32}
    assert len({label.graph_hash for label in labels}) == len(models)
    assert 0 < report.busy_s < report.measuring_s
