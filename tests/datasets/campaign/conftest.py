"""A small collection, and a device and a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.plan import Request
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.model_source import ModelSource

DEVICE = "Test Device"


def make_recipes(models: int, *, batches: Sequence[int] = (1, 2, 4)) -> list[Recipe]:
    return [
        Recipe(
            collection="test",
            family=f"family{model % 3}",
            architecture="test:net",
            arguments={"width": model},
            inputs=InputShapes(positional=(InputEntry(shape=(8,)),)),
            batch=batch,
        )
        for model in range(models)
        for batch in batches
    ]


def inference(precision: str = "fp32") -> Request:
    return Request(conditions=Conditions.parse(precision=precision))


@dataclass
class FakeDevice:
    """Measures by a rule, and keeps count of what it was asked."""

    rule: Callable[[Recipe, Configuration], Outcome] = lambda recipe, configuration: Outcome.OK
    measured: list[tuple[str, Configuration]] = field(default_factory=list)
    on_measure: Callable[[], None] = lambda: None
    open_calls: int = 0
    busy_s: float = 0.0

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        self.open_calls += 1
        try:
            for configuration in configurations:
                self.on_measure()
                recipe = source.recipe  # type: ignore[attr-defined]
                self.measured.append((recipe.model_key, configuration))
                outcome = self.rule(recipe, configuration)
                has_figures = outcome in (Outcome.OK, Outcome.NOT_FINITE)
                yield Measurement(
                    outcome=outcome,
                    message="" if outcome is Outcome.OK else f"because {outcome}",
                    device="" if outcome is Outcome.FAILED else DEVICE,
                    measured_at="2026-01-01T00:00:00Z",
                    latency_ms=1.0 if has_figures else None,
                )
        finally:
            self.open_calls -= 1


@dataclass
class MemoryStore:
    """Labels in a dict."""

    rows: dict[str, Label] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    on_add: Callable[[Label], None] = lambda label: None

    def add(self, label: Label) -> bool:
        self.on_add(label)
        is_new = label.key not in self.rows
        self.rows.setdefault(label.key, label)
        return is_new

    def set_graph_hash(self, model_key: str, graph_hash: str) -> int:
        self.hashes[model_key] = graph_hash
        return 1


@pytest.fixture(name="recipes", scope="session")
def _recipes() -> Callable[..., list[Recipe]]:
    return make_recipes


@pytest.fixture(name="inference", scope="session")
def _inference() -> Callable[..., Request]:
    return inference


@pytest.fixture(name="device")
def _device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture(name="store")
def _store() -> MemoryStore:
    return MemoryStore()
