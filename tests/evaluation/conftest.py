"""Samples made up for tests: no graph is read for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_samples import GraphSamples
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.selection import read_targets
from dippm.datasets.store.label import Label
from dippm.evaluation.dippm_protocol import evaluate_dippm
from dippm.evaluation.dippm_report import DippmReport
from dippm.evaluation.dippm_report import ProtocolSettings as DippmSettings
from dippm.evaluation.dnnperf_protocol import evaluate_dnnperf
from dippm.evaluation.dnnperf_report import DnnperfReport, DnnperfSettings
from dippm.evaluation.model_coverage import ReadingNote
from dippm.features.cost_sums import COST_COLUMNS
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.models.dnnperf_registry import ANEE, DNNPERF_MODELS

DEVICE = "A100-SXM4-40GB"


def make_label(
    model: int,
    *,
    family: str = "resnet",
    batch: int = 1,
    memory_mb: float | None = None,
    latency_ms: float | None = 1.0,
    repeat: int = 0,
    source: str = "dippm",
    device: str = DEVICE,
    conditions: Conditions | None = None,
) -> Label:
    return Label(
        recipe=Recipe(
            collection="test",
            family=family,
            architecture="test:net",
            arguments={"number": model},
            inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
            batch=batch,
        ),
        configuration=Configuration(batch=batch, conditions=conditions or Conditions()),
        measurement=Measurement(
            outcome=Outcome.OK,
            device=device,
            measured_at="",
            memory_mb=memory_mb,
            latency_ms=latency_ms,
            software=SoftwareStack(framework="torch 2.13.0"),
        ),
        repeat=repeat,
        graph_hash=f"graph {model}",
        source=source,
    )


def make_samples(labels: Sequence[Label], *, operators: Sequence[int] | None = None) -> GraphSamples:
    counts = np.array(operators if operators is not None else [2] * len(labels))
    nodes = int(counts.sum())
    return GraphSamples(
        labels=tuple(labels),
        node_features=np.zeros((nodes, 32), dtype=np.float32),
        edge_index=np.zeros((2, 0), dtype=np.int64),
        node_offsets=np.concatenate([[0], np.cumsum(counts)]),
        edge_offsets=np.zeros(len(labels) + 1, dtype=np.int64),
        static_features=np.ones((len(labels), 5)),
        cost_sums=np.ones((len(labels), len(COST_COLUMNS))),
        targets=read_targets(labels),
        key="0123456789abcdef",
        unread={},
    )


@pytest.fixture(name="make_label", scope="session")
def _make_label() -> Callable[..., Label]:
    return make_label


@pytest.fixture(name="make_samples", scope="session")
def _make_samples() -> Callable[..., GraphSamples]:
    return make_samples


@pytest.fixture(scope="session")
def zoo() -> GraphSamples:
    """Five families of eight models at two batches each, with memory from 100 to 6,900 MiB."""
    families = ("alexnet", "bert", "convnext", "densenet", "efficientnet")
    labels = [
        make_label(
            8 * place + number,
            family=family,
            batch=batch,
            memory_mb=100.0 + 200.0 * number * batch + 1000.0 * place,
            latency_ms=1.0 + number * batch,
        )
        for place, family in enumerate(families)
        for number in range(8)
        for batch in (1, 2)
    ]
    return make_samples(labels, operators=[30 * (1 + index // 8) for index in range(len(labels))])


@pytest.fixture(scope="session")
def predict_with_noise() -> Callable[..., npt.NDArray[np.float64]]:
    """Predictions that are off by ten percent, by a seed that follows from what is trained."""

    def predict(samples: GraphSamples, _parts: Any, *, model: str, epochs: int, seed: int) -> npt.NDArray[np.float64]:
        noise = np.random.default_rng([len(model), epochs, seed]).normal(0.0, 0.1, samples.targets.shape)
        return np.where(np.isfinite(samples.targets), samples.targets, 1.0) * np.exp(noise)

    return predict


@pytest.fixture(scope="session")
def dippm_report(zoo: GraphSamples, predict_with_noise: Callable[..., npt.NDArray[np.float64]]) -> DippmReport:
    settings = DippmSettings(seeds=2, family_groups=3)
    provenance = {"command": "dippm evaluate", "software": {"x": "1.0"}}
    return evaluate_dippm(zoo, predict_with_noise, settings, provenance=provenance)


@pytest.fixture(scope="session")
def make_dnnperf_report() -> Callable[..., DnnperfReport]:
    """A report in which one network is best."""

    def make(samples: GraphSamples, settings: DnnperfSettings, *, best: str = ANEE) -> DnnperfReport:
        def predict(parts: npt.NDArray[np.int8], *, model: str, seed: int) -> npt.NDArray[np.float64]:
            spread = 0.01 if model == best else 0.1 + 0.02 * DNNPERF_MODELS.index(model)
            noise = np.random.default_rng([len(model), seed, len(parts)]).normal(0.0, spread, samples.targets.shape)
            return np.where(np.isfinite(samples.targets), samples.targets, 1.0) * np.exp(noise)

        provenance = {"command": "dippm evaluate", "software": {"x": "1"}}
        return evaluate_dnnperf(samples, predict, settings, provenance=provenance)

    return make


@pytest.fixture(scope="session")
def dnnperf_report(zoo: GraphSamples, make_dnnperf_report: Callable[..., DnnperfReport]) -> DnnperfReport:
    return make_dnnperf_report(zoo, DnnperfSettings(seeds=2, family_groups=3))


@pytest.fixture
def reading_notes() -> list[ReadingNote]:
    """What became of five models: read, read for one batch, named with a reason."""
    return [
        ReadingNote(
            name="timm:a", family="timm.models.a", read_s=1.0, nodes=30, parameters=5, macs=100, counted_macs=100
        ),
        ReadingNote(name="timm:b", family="timm.models.a", read_s=3.0, nodes=20, macs=100, counted_macs=80),
        ReadingNote(name="timm:c", family="timm.models.c", read_s=2.0, nodes=9, macs=7, fixed_batch_reason="It mixes."),
        ReadingNote(name="torchvision:d", code="torch.data_dependent", message="At /x/site-packages/y.py:3. More."),
        ReadingNote(name="hf:MambaForCausalLM", family="m", nodes=4, macs=7, unsupported_ops={"aten.odd": 2}),
    ]
