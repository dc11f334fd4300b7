"""The DNNPerf protocol with predictors whose errors are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dippm.datasets.graph_samples import GraphSamples, Part, assign_parts
from dippm.datasets.store.label import Label
from dippm.errors import DippmError, UsageError
from dippm.evaluation.dnnperf_protocol import evaluate_dnnperf
from dippm.evaluation.dnnperf_report import OVERALL, DnnperfReport, DnnperfSettings, ErrorPair
from dippm.evaluation.novelty import leave_families_out
from dippm.models.dnnperf_registry import ABLATIONS, ANEE, BASELINES, DNNPERF_MODELS, TREES

SETTINGS = DnnperfSettings(epochs=3, seed=1, seeds=2, family_groups=2)
FACTORS = {ANEE: 1.1, TREES: 0.8}

MakeSamples = Callable[..., GraphSamples]


@dataclass
class Off:
    """Predicts the measured figures times a factor of the model, and remembers what it was asked."""

    samples: GraphSamples
    asked: list[tuple[str, int]] = field(default_factory=list)
    parts: list[npt.NDArray[np.int8]] = field(default_factory=list)

    def __call__(self, parts: npt.NDArray[np.int8], *, model: str, seed: int) -> npt.NDArray[np.float64]:
        self.asked.append((model, seed))
        self.parts.append(parts)
        # A figure that was never measured: nonsense, which must not come out anywhere.
        known = np.where(np.isfinite(self.samples.targets), self.samples.targets, 1e6)
        return known * FACTORS.get(model, 1.5)


@pytest.fixture(name="off", scope="module")
def _off(zoo: GraphSamples) -> Off:
    return Off(zoo)


@pytest.fixture(scope="module")
def report(off: Off, zoo: GraphSamples) -> DnnperfReport:
    return evaluate_dnnperf(zoo, off, SETTINGS, provenance={"command": "dippm evaluate"})


def test_what_is_trained(off: Off, report: DnnperfReport, zoo: GraphSamples) -> None:
    tables = [(model, seed) for seed in (1, 2) for model in DNNPERF_MODELS]
    # AlexNet is held out, then two groups of families in turn.
    assert off.asked == [*tables, *([(ANEE, 1), (TREES, 1)] * 3)]
    assert (ANEE, *BASELINES, *ABLATIONS) == DNNPERF_MODELS
    assert (off.parts[0] == assign_parts(zoo, seed=1)).all()
    assert (off.parts[len(DNNPERF_MODELS)] == assign_parts(zoo, seed=2)).all()
    held_out = off.parts[len(tables)]
    assert ((held_out == Part.TEST) == (zoo.families == "alexnet")).all()
    groups = leave_families_out(zoo, 2, seed=1)
    for parts, wanted in zip(off.parts[len(tables) + 2 :: 2], groups.values(), strict=True):
        assert (parts == wanted).all()
    assert {each.name for each in report.left_out} == set(zoo.families.tolist())


def test_errors_are_those_of_the_predictor(report: DnnperfReport, zoo: GraphSamples) -> None:
    assert [score.model for score in report.comparison] == [ANEE, *BASELINES] * 2
    assert [score.model for score in report.ablation] == [*ABLATIONS] * 2
    is_test = assign_parts(zoo, seed=1) == Part.TEST
    for score in (*report.comparison, *report.ablation):
        error = 100.0 * abs(FACTORS.get(score.model, 1.5) - 1.0)
        for part in ("training", "validation"):
            assert score.fitted_percent[part] == pytest.approx({"memory_mb": error, "latency_ms": error})
        assert list(score.test) == [OVERALL]
        assert score.test[OVERALL]["latency_ms"].mre_percent == pytest.approx(error)
        assert "energy_j" not in score.test[OVERALL]
    root = float(np.sqrt((zoo.targets[is_test, 1] ** 2).mean()))
    assert report.comparison[0].test[OVERALL]["latency_ms"].rmse == pytest.approx(0.1 * root)
    assert report.comparison[0].rows["test"] == is_test.sum() == len(report.rows)
    assert report.mean_error(ANEE, "memory_mb") == pytest.approx(10.0)
    assert report.mean_error(TREES, "memory_mb") == pytest.approx(20.0)
    assert report.mean_error(ANEE, "energy_j") is None


def test_held_out_models_have_their_rows(report: DnnperfReport, zoo: GraphSamples) -> None:
    (alexnet,) = report.unseen
    assert (alexnet.name, alexnet.rows) == ("AlexNet", 16)
    assert alexnet.errors[ANEE]["memory_mb"].mre_percent == pytest.approx(10.0)
    assert alexnet.errors[TREES]["memory_mb"].mre_percent == pytest.approx(20.0)
    assert {each.rows for each in report.left_out} == {16}


def test_compared_rows_are_anees(report: DnnperfReport) -> None:
    for row in report.rows:
        assert row.predicted == pytest.approx({name: 1.1 * value for name, value in row.measured.items()})
        assert set(row.measured) == {"memory_mb", "latency_ms"}


def _named(make_label: Callable[..., Label], number: int, *, architecture: str, family: str, collection: str) -> Label:
    label = make_label(number, family=family)
    recipe = replace(label.recipe, architecture=architecture, collection=collection)
    return replace(label, recipe=recipe)


def test_collections_and_names_of_the_paper(make_label: Callable[..., Label], make_samples: MakeSamples) -> None:
    kinds = (
        ("zoo:timm:resnetv2_50", "resnet", "dnnperf-hpo"), ("zoo:timm:resnet50", "resnet", "dnnperf-nas"),
        ("zoo:timm:vgg16", "vgg", "dnnperf-nas"), ("zoo:timm:repvgg_a0", "repvgg", "other"),
        ("recurrent", "gru", "dnnperf-hpo"), ("chain", "chain", "other"),
    )  # fmt: skip
    labels = [
        _named(make_label, 10 * place + number, architecture=architecture, family=family, collection=collection)
        for place, (architecture, family, collection) in enumerate(kinds)
        for number in range(10)
    ]
    samples = make_samples(labels)
    off = Off(samples)
    report = evaluate_dnnperf(samples, off, DnnperfSettings())
    assert set(report.comparison[0].test) == {OVERALL, "HPO", "NAS", "other"}
    counts = report.comparison[0].group_rows
    assert counts["HPO"] + counts["NAS"] + counts["other"] == counts[OVERALL]
    assert [(each.name, each.rows) for each in report.unseen] == [("VGG", 10), ("ResNet-V2", 10), ("GRU", 10)]
    is_held = off.parts[len(DNNPERF_MODELS)] == Part.TEST
    assert {labels[index].recipe.architecture for index in np.flatnonzero(is_held)} == {
        "zoo:timm:resnetv2_50", "zoo:timm:vgg16", "recurrent",
    }  # fmt: skip
    assert report.left_out == ()


def test_the_same_graph_under_another_name_is_not_trained_on(
    make_label: Callable[..., Label], make_samples: MakeSamples
) -> None:
    labels = [make_label(number, family="vgg" if number < 4 else "chain") for number in range(30)]
    labels[10] = replace(labels[10], graph_hash=labels[0].graph_hash)
    samples = make_samples(labels)
    off = Off(samples)
    evaluate_dnnperf(samples, off, DnnperfSettings())
    assert off.parts[len(DNNPERF_MODELS)][10] == Part.NONE


def test_without_unseen_models_none_is_held_out(make_label: Callable[..., Label], make_samples: MakeSamples) -> None:
    samples = make_samples([make_label(number) for number in range(30)])
    off = Off(samples)
    assert evaluate_dnnperf(samples, off, DnnperfSettings()).unseen == ()
    assert len(off.asked) == len(DNNPERF_MODELS)


def test_a_figure_without_labels_in_training_is_no_prediction(
    make_label: Callable[..., Label], make_samples: MakeSamples
) -> None:
    labels = [make_label(number, memory_mb=None) for number in range(30)]
    is_test = assign_parts(make_samples(labels)) == Part.TEST
    labels = [
        make_label(number, memory_mb=100.0 if is_held else None) for number, is_held in enumerate(is_test.tolist())
    ]
    samples = make_samples(labels)
    report = evaluate_dnnperf(samples, Off(samples), DnnperfSettings())
    assert set(report.comparison[0].test[OVERALL]) == {"latency_ms"}


def test_progress_counts_up(zoo: GraphSamples) -> None:
    seen: list[tuple[int, int, str]] = []
    evaluate_dnnperf(zoo, Off(zoo), DnnperfSettings(), on_run=lambda *now: seen.append(now))
    total = len(DNNPERF_MODELS) + 2
    assert [done for done, _, _ in seen] == list(range(total + 1))
    assert {of for _, of, _ in seen} == {total}
    assert seen[0][2] == "anee, seed 0"


def test_too_few_models_and_predictions_that_are_no_numbers(
    make_label: Callable[..., Label], make_samples: MakeSamples, zoo: GraphSamples
) -> None:
    few = make_samples([make_label(0)])
    with pytest.raises(UsageError) as caught:
        evaluate_dnnperf(few, Off(few), DnnperfSettings())
    assert caught.value.code == "evaluation.too_few"

    def broken(_parts: Any, *, model: str, seed: int) -> npt.NDArray[np.float64]:
        return np.full((len(zoo), 3), np.inf if (model, seed) == ("arnn", 0) else 1.0)

    with pytest.raises(DippmError, match="arnn of seed 0") as diverged:
        evaluate_dnnperf(zoo, broken, DnnperfSettings())
    assert diverged.value.code == "evaluation.not_finite"


def test_the_report_is_plain(report: DnnperfReport) -> None:
    plain = report.to_dict()
    assert plain["comparison"][0]["test"][OVERALL]["latency_ms"]["mre_percent"] == pytest.approx(10.0)
    assert isinstance(report.comparison[0].test[OVERALL]["latency_ms"], ErrorPair)
