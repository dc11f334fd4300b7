"""The DIPPM protocol with predictors whose errors are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dippm.datasets.graph_samples import GraphSamples, Part, assign_parts
from dippm.datasets.store.label import Label
from dippm.errors import DippmError, UsageError
from dippm.evaluation.dippm_protocol import BASELINE, MODELS, evaluate_dippm
from dippm.evaluation.dippm_report import DippmReport, ProtocolSettings
from dippm.evaluation.novelty import Novelty, leave_families_out, split_for

SETTINGS = ProtocolSettings(epochs=3, long_epochs=7, seed=1, seeds=2, family_groups=2)
# Factor on the measured figures, by model and by whether it is a long run.
SHORT, LONG, TREES = 1.5, 1.1, 0.8


@dataclass
class Off:
    """Predicts the measured figures times a factor, and remembers what it was asked."""

    asked: list[tuple[str, int, int]] = field(default_factory=list)
    parts: list[npt.NDArray[np.int8]] = field(default_factory=list)

    def __call__(
        self, samples: GraphSamples, parts: npt.NDArray[np.int8], *, model: str, epochs: int, seed: int
    ) -> npt.NDArray[np.float64]:
        self.asked.append((model, epochs, seed))
        self.parts.append(parts)
        factor = TREES if model == BASELINE else LONG if epochs == SETTINGS.long_epochs else SHORT
        # A figure that was never measured: nonsense, which must not come out anywhere.
        return np.where(np.isfinite(samples.targets), samples.targets, 1e6) * factor


@pytest.fixture(name="off", scope="module")
def _off() -> Off:
    return Off()


@pytest.fixture(scope="module")
def report(off: Off, zoo: GraphSamples) -> DippmReport:
    return evaluate_dippm(zoo, off, SETTINGS, provenance={"command": "dippm evaluate"})


def test_what_is_trained(off: Off, report: DippmReport, zoo: GraphSamples) -> None:
    table_4 = [(model, 3, seed) for seed in (1, 2) for model in MODELS]
    pair = [("pmgns", 7, 1), (BASELINE, 3, 1)]
    # The long run, then pairs for seen rows, unseen rows, and each of two groups of families.
    assert off.asked == [*table_4, ("pmgns", 7, 1), *(pair * 4)]
    assert (off.parts[0] == assign_parts(zoo, seed=1)).all()
    assert (off.parts[len(MODELS)] == assign_parts(zoo, seed=2)).all()
    assert (off.parts[12] == off.parts[0]).all()
    for place, novelty in ((13, Novelty.SEEN), (15, Novelty.UNSEEN)):
        wanted = split_for(zoo, novelty, seed=1)
        assert wanted is not None
        assert (off.parts[place] == wanted).all()
    groups = leave_families_out(zoo, 2, seed=1)
    for parts, wanted in zip(off.parts[17::2], groups.values(), strict=True):
        assert (parts == wanted).all()
    assert {score.name: score.rows for score in report.left_out} == Counter(zoo.families.tolist())


def test_errors_are_those_of_the_predictor(report: DippmReport) -> None:
    for score in report.networks:
        error = 20.0 if score.model == BASELINE else 50.0
        for part in ("training", "validation", "test"):
            assert score.errors[part] == pytest.approx({"memory_mb": error, "latency_ms": error, "mean": error})
    assert report.long_run.test_mean == pytest.approx(10.0)
    assert report.baseline.test_mean == pytest.approx(20.0)
    assert [(score.novelty, score.model) for score in report.by_novelty] == [
        (novelty, model) for novelty in Novelty for model in ("pmgns", BASELINE)
    ]
    assert report.left_out_mean == report.left_out_row_mean == pytest.approx(10.0)


def test_groups_hold_every_test_row_once(report: DippmReport) -> None:
    tested = report.long_run.rows["test"]
    assert len(report.rows) == tested
    assert sum(each.rows for each in report.families) == tested
    assert sum(each.rows for each in report.sizes) == tested
    assert all(each.baseline_errors["mean"] == pytest.approx(20.0) for each in report.families)
    names = [each.name for each in report.sizes]
    assert names == [n for n in ("1 to 50", "51 to 100", "101 to 200", "201 to 400") if n in names]
    assert len(names) > 1
    for spread in report.spreads:
        assert spread.bias_percent == pytest.approx(10.0)
        assert spread.quantiles_percent == pytest.approx((10.0,) * 5)
        assert spread.within_percent[2] == 100.0
    assert [spread.metric for spread in report.spreads] == ["memory_mb", "latency_ms"]


def test_size_bins_take_their_ends(make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]) -> None:
    sizes = [50, 51, 800, 801] * 40
    samples = make_samples([make_label(number) for number in range(len(sizes))], operators=sizes)
    report = evaluate_dippm(samples, Off(), ProtocolSettings(epochs=1, long_epochs=7))
    assert [each.name for each in report.sizes] == ["1 to 50", "51 to 100", "401 to 800", "801 or more"]
    rows = {each.name: each.rows for each in report.sizes}
    assert rows["1 to 50"] == sum(row.operators == 50 for row in report.rows)


def test_mig_slices_by_hand(make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]) -> None:
    # Predicted 10 % high: 4,000 stays in 5 GB, 4,900 leaves it, 6,000 stays in 10 GB.
    memories = [4000.0, 4900.0, 6000.0]
    samples = make_samples([make_label(number, memory_mb=memories[number % 3]) for number in range(60)])
    report = evaluate_dippm(samples, Off(), ProtocolSettings(epochs=1, long_epochs=7))
    (score,) = report.mig
    measured = [row.measured["memory_mb"] for row in report.rows]
    assert score.novelty is Novelty.PARTLY_SEEN
    assert (score.rows, score.too_small) == (len(measured), 0)
    assert score.too_large == measured.count(4900.0) > 0
    assert score.right == len(measured) - measured.count(4900.0)
    assert score.measured_slices == {
        "1g.5gb": measured.count(4000.0) + measured.count(4900.0),
        "2g.10gb": measured.count(6000.0),
    }
    assert score.memory_error == pytest.approx(10.0)
    least, most = report.mig_examples
    assert (least.measured["memory_mb"], most.measured["memory_mb"]) == (min(measured), max(measured))


def test_too_small_a_slice_is_told_from_too_large_a_one(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    samples = make_samples([make_label(number, memory_mb=5200.0) for number in range(40)])

    def low(samples: GraphSamples, _parts: Any, **_: Any) -> npt.NDArray[np.float64]:
        return samples.targets * 0.9

    (score,) = evaluate_dippm(samples, low, ProtocolSettings()).mig
    assert (score.right, score.too_small, score.too_large) == (0, score.rows, 0)


def test_labels_without_memory_have_no_slices(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    samples = make_samples([make_label(number) for number in range(40)])
    report = evaluate_dippm(samples, Off(), ProtocolSettings(epochs=1, long_epochs=7))
    assert report.mig == report.mig_examples == ()
    assert report.left_out_mean is None
    # One family, one batch: the split by model alone has test rows.
    assert [score.novelty for score in report.by_novelty] == [Novelty.PARTLY_SEEN] * 2


def test_predictions_that_are_no_numbers_are_refused(zoo: GraphSamples) -> None:
    def diverge(samples: GraphSamples, _parts: Any, **_: Any) -> npt.NDArray[np.float64]:
        return np.full_like(samples.targets, np.inf)

    with pytest.raises(DippmError) as caught:
        evaluate_dippm(zoo, diverge, ProtocolSettings())
    assert caught.value.code == "evaluation.not_finite"


def test_data_too_small_for_a_test_split_are_refused(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate_dippm(make_samples([make_label(0)]), Off(), ProtocolSettings())
    assert caught.value.code == "evaluation.too_few"


def test_a_figure_that_training_lacks_is_not_predicted(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    plain = make_samples([make_label(number) for number in range(40)])
    tested = assign_parts(plain, seed=0) == Part.TEST
    first, second = np.flatnonzero(tested)[:2]
    labels, operators = list(plain.labels), [10] * 40
    labels[first] = make_label(int(first), memory_mb=100.0)
    labels[second] = make_label(int(second), memory_mb=100.0, latency_ms=None)
    operators[second] = 999
    report = evaluate_dippm(make_samples(labels, operators=operators), Off(), ProtocolSettings(epochs=1, long_epochs=7))
    assert {row.operators for row in report.rows} == {10, 999}
    assert set(report.long_run.errors["test"]) == {"latency_ms", "mean"}
    assert report.mig == ()
    assert [each.name for each in report.sizes] == ["1 to 50"]


def test_progress_ends_at_its_total(zoo: GraphSamples) -> None:
    told: list[tuple[int, int, str]] = []
    evaluate_dippm(zoo, Off(), SETTINGS, on_run=lambda done, total, what: told.append((done, total, what)))
    assert told[0] == (0, 21, "pmgns, 3 epochs, seed 1")
    assert told[-1] == (21, 21, "")
    assert [done for done, _, _ in told] == list(range(22))
