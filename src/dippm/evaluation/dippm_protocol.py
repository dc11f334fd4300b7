"""The evaluation of the DIPPM paper on one data set.

Panner Selvam and Brorsson, "DIPPM" (2023), section 4: networks compared after a few epochs (Table 4), the best one
trained long, actual against predicted figures (Figure 4), MIG slices for architectures that training has seen, partly
seen and not seen (Table 5); and beyond the paper errors by family, with families left out, and by size of the graph.
Boosted trees on summed costs stand beside the networks everywhere.

Training is the caller's: this module lies below it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import GraphSamples, Part
from dippm.datasets.selection import METRICS
from dippm.devices import find_device
from dippm.evaluation.dippm_report import (
    ComparedRow,
    DippmReport,
    ErrorSpread,
    GroupScore,
    MigScore,
    NetworkScore,
    ProtocolSettings,
    SourceNoise,
)
from dippm.evaluation.label_noise import summarize_dataset
from dippm.evaluation.novelty import Novelty, leave_families_out, novelty_of_samples, split_for
from dippm.evaluation.protocol_run import OnRun, Run, draw_tested_parts
from dippm.evaluation.relative_errors import absolute_errors, mape_percent
from dippm.models.registry import NETWORKS
from dippm.placement import MigPolicy, choose_mig

__all__ = ["BASELINE", "CONSTANT", "MIG_DEVICE", "MODELS", "Predict", "apply_equation_2", "evaluate_dippm"]

BASELINE = "gbdt"
MODELS = (*NETWORKS, BASELINE)
"""What is compared: the networks, the default one first, and boosted trees."""
MIG_DEVICE = "A100-SXM4-40GB"
"""Eq. 2 of the paper is for this device."""

CONSTANT = "constant"
"""The medians of the training rows, whatever the model."""

_DEFAULT = MODELS[0]
_SCORED = {"training": Part.TRAINING, "validation": Part.VALIDATION, "test": Part.TEST}
_SIZE_ENDS = (50, 100, 200, 400, 800)
_QUANTILES = (0.5, 0.75, 0.9, 0.95, 1.0)
_WITHIN = (5.0, 10.0, 20.0)

FloatArray = npt.NDArray[np.float64]
PartArray = npt.NDArray[np.int8]
BoolArray = npt.NDArray[np.bool_]


class Predict(Protocol):
    """Trains on the training part and predicts every sample."""

    def __call__(self, samples: GraphSamples, parts: PartArray, *, model: str, epochs: int, seed: int) -> FloatArray:
        """Train and predict, [S, 3]; ``model`` is one of :data:`MODELS`, and trees have no epochs."""
        ...


class _Runner:
    """Trains one thing after the other and counts them."""

    def __init__(self, samples: GraphSamples, predict: Predict, *, total: int, on_run: OnRun | None) -> None:
        self._samples = samples
        self._predict = predict
        self._total = total
        self._done = 0
        self._on_run = on_run

    def run(self, parts: PartArray, *, model: str, epochs: int, seed: int) -> Run:
        """One training."""
        self._report(f"{model}, {epochs} epochs, seed {seed}" if model != BASELINE else f"{model}, seed {seed}")
        predicted = self._predict(self._samples, parts, model=model, epochs=epochs, seed=seed)
        self._done += 1
        return Run.of(self._samples, parts, predicted, model=model, seed=seed)

    def skip(self, count: int) -> None:
        """Count trainings that the data do not allow as done."""
        self._done += count

    def finish(self) -> None:
        """Say that all is done."""
        self._report("")

    def _report(self, what: str) -> None:
        if self._on_run is not None:
            self._on_run(self._done, self._total, what)


def evaluate_dippm(
    samples: GraphSamples,
    predict: Predict,
    settings: ProtocolSettings,
    *,
    noise: Sequence[SourceNoise] = (),
    provenance: Mapping[str, Any] | None = None,
    on_run: OnRun | None = None,
) -> DippmReport:
    """Run the protocol.

    Args:
        samples: Samples of one selection of labels.
        predict: Trains; ``dippm.training.train_model.predict_with`` does the work of one.
        settings: How long, from which seed.
        noise: The labels' own noise, for the report.
        provenance: Command, versions and the like, for the report.
        on_run: Called before each training and at the end.

    Raises:
        UsageError: ``evaluation.too_few`` where there are no test rows.
        DippmError: ``evaluation.not_finite`` where a training came to nothing; whatever ``predict`` raises.
    """
    left_out = leave_families_out(samples, settings.family_groups, seed=settings.seed)
    total = settings.seeds * len(MODELS) + 2 * len(Novelty) - 1 + 2 * len(left_out)
    runner = _Runner(samples, predict, total=total, on_run=on_run)
    networks: list[Run] = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        parts = draw_tested_parts(samples, seed=seed)
        networks += [runner.run(parts, model=model, epochs=settings.epochs, seed=seed) for model in MODELS]
    baseline = networks[len(MODELS) - 1]
    long_run = runner.run(baseline.parts, model=_DEFAULT, epochs=settings.long_epochs, seed=settings.seed)
    runs = {Novelty.PARTLY_SEEN: (long_run, baseline)}
    for novelty in (Novelty.SEEN, Novelty.UNSEEN):
        found = split_for(samples, novelty, seed=settings.seed)
        if found is None:
            runner.skip(2)
            continue
        runs[novelty] = _run_both(runner, found, settings)
    families_left_out = list(_leave_out(samples, left_out, runner, settings))
    runner.finish()
    tests = {novelty: _test_rows(samples, run.parts, novelty) for novelty, (run, _) in runs.items()}
    order = [novelty for novelty in Novelty if novelty in runs and tests[novelty].any()]
    is_test = long_run.parts == Part.TEST
    migs = {novelty: _score_mig(samples, runs[novelty][0], tests[novelty], novelty) for novelty in order}
    return DippmReport(
        dataset=summarize_dataset(samples, noise),
        settings=settings,
        networks=tuple(_score(samples, run) for run in networks),
        long_run=_score(samples, long_run),
        baseline=_score(samples, baseline),
        constant=_score(samples, _constant(samples, baseline)),
        by_novelty=tuple(
            _score(samples, run, test=tests[novelty], novelty=novelty) for novelty in order for run in runs[novelty]
        ),
        rows=tuple(_compare(samples, long_run, np.flatnonzero(is_test))),
        families=_group(samples, long_run, baseline, is_test, samples.families, is_by_error=True),
        sizes=_group(samples, long_run, baseline, is_test, _size_names(samples.node_counts), is_by_error=False),
        spreads=_spread(samples, long_run, is_test),
        mig=tuple(score for score in migs.values() if score is not None),
        mig_examples=tuple(
            row
            for novelty, score in migs.items()
            if score is not None
            for row in _examples(samples, runs[novelty][0], tests[novelty])
        ),
        left_out=tuple(sorted(families_left_out, key=lambda each: -each.errors["mean"])),
        provenance=dict(provenance or {}),
    )


def _constant(samples: GraphSamples, run: Run) -> Run:
    training = samples.targets[run.parts == Part.TRAINING]
    medians = [
        float(np.median(known)) if (known := column[np.isfinite(column)]).size else np.nan for column in training.T
    ]
    return Run(
        model=CONSTANT, seed=run.seed, parts=run.parts, predicted=np.broadcast_to(medians, samples.targets.shape)
    )


def _run_both(runner: _Runner, parts: PartArray, settings: ProtocolSettings) -> tuple[Run, Run]:
    network = runner.run(parts, model=_DEFAULT, epochs=settings.long_epochs, seed=settings.seed)
    return network, runner.run(parts, model=BASELINE, epochs=settings.epochs, seed=settings.seed)


def _leave_out(
    samples: GraphSamples, groups: Mapping[tuple[str, ...], PartArray], runner: _Runner, settings: ProtocolSettings
) -> Iterator[GroupScore]:
    for families, parts in groups.items():
        network, trees = _run_both(runner, parts, settings)
        for family in families:
            # A graph of a family left out that has a name in another one as well is in neither part.
            score = _score_group(samples, network, trees, (parts == Part.TEST) & (samples.families == family), family)
            if score.errors:
                yield score


def _score(
    samples: GraphSamples, run: Run, *, test: BoolArray | None = None, novelty: Novelty | None = None
) -> NetworkScore:
    chosen = {name: run.parts == part for name, part in _SCORED.items()}
    if test is not None:
        chosen["test"] = test
    return NetworkScore(
        model=run.model,
        seed=run.seed,
        rows={name: int(mask.sum()) for name, mask in chosen.items()},
        errors={name: mape_percent(run.predicted[mask], samples.targets[mask]) for name, mask in chosen.items()},
        novelty=novelty,
    )


def _test_rows(samples: GraphSamples, parts: PartArray, novelty: Novelty) -> BoolArray:
    mask: BoolArray = (parts == Part.TEST) & (novelty_of_samples(samples, parts) == novelty)
    return mask


def _compare(samples: GraphSamples, run: Run, chosen: Iterable[int]) -> Iterator[ComparedRow]:
    novelty = novelty_of_samples(samples, run.parts)
    for index in chosen:
        recipe = samples.labels[index].recipe
        known = [column for column in range(len(METRICS)) if np.isfinite(samples.targets[index, column])]
        yield ComparedRow(
            model=f"{recipe.architecture} {recipe.model_key[:8]}",
            family=recipe.family,
            batch=recipe.batch,
            operators=int(samples.node_counts[index]),
            novelty=Novelty(str(novelty[index])),
            measured={METRICS[column]: float(samples.targets[index, column]) for column in known},
            predicted={METRICS[column]: float(run.predicted[index, column]) for column in known},
        )


def _group(
    samples: GraphSamples, run: Run, trees: Run, chosen: BoolArray, names: npt.NDArray[np.str_], *, is_by_error: bool
) -> tuple[GroupScore, ...]:
    """Errors of the chosen rows by name; names keep the order of their first digits unless errors decide."""
    members: dict[str, BoolArray] = defaultdict(lambda: np.zeros(len(names), dtype=np.bool_))
    for index in np.flatnonzero(chosen):
        members[str(names[index])][index] = True
    scores = [_score_group(samples, run, trees, mask, name) for name, mask in members.items()]
    # Rows whose only figures are ones that training has never had are not predicted.
    scores = [score for score in scores if score.errors]
    if is_by_error:
        return tuple(sorted(scores, key=lambda score: (-score.errors["mean"], score.name)))
    return tuple(sorted(scores, key=lambda score: int(score.name.split()[0])))


def _score_group(samples: GraphSamples, run: Run, trees: Run, chosen: BoolArray, name: str) -> GroupScore:
    return GroupScore(
        name=name,
        rows=int(chosen.sum()),
        errors=mape_percent(run.predicted[chosen], samples.targets[chosen]),
        baseline_errors=mape_percent(trees.predicted[chosen], samples.targets[chosen]),
    )


def _size_names(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    starts = (1, *(end + 1 for end in _SIZE_ENDS))
    names = [f"{start} to {end}" for start, end in zip(starts, _SIZE_ENDS, strict=False)] + [f"{starts[-1]} or more"]
    return np.array(names)[np.searchsorted(_SIZE_ENDS, counts)]


def _spread(samples: GraphSamples, run: Run, chosen: BoolArray) -> tuple[ErrorSpread, ...]:
    spreads = []
    for column, metric in enumerate(METRICS):
        predicted, measured = run.predicted[chosen, column], samples.targets[chosen, column]
        is_known = np.isfinite(predicted) & np.isfinite(measured)
        if not is_known.any():
            continue
        signed = 100.0 * (predicted[is_known] / measured[is_known] - 1.0)
        errors = absolute_errors(predicted[is_known], measured[is_known])
        median, upper, high, higher, largest = np.quantile(errors, _QUANTILES).tolist()
        below_5, below_10, below_20 = (100.0 * float((errors < limit).mean()) for limit in _WITHIN)
        spreads.append(
            ErrorSpread(
                metric=metric,
                bias_percent=float(np.median(signed)),
                quantiles_percent=(median, upper, high, higher, largest),
                within_percent=(below_5, below_10, below_20),
            )
        )
    return tuple(spreads)


def _score_mig(samples: GraphSamples, run: Run, chosen: BoolArray, novelty: Novelty) -> MigScore | None:
    memory = METRICS.index("memory_mb")
    pairs = np.column_stack([run.predicted[chosen, memory], samples.targets[chosen, memory]])
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if not len(pairs):
        return None
    right = too_small = 0
    slices: Counter[str] = Counter()
    for predicted_mb, measured_mb in pairs.tolist():
        wanted = apply_equation_2(measured_mb)
        slices[wanted] += 1
        if apply_equation_2(predicted_mb) == wanted:
            right += 1
        elif predicted_mb < measured_mb:
            too_small += 1
    return MigScore(
        novelty=novelty,
        rows=len(pairs),
        right=right,
        too_small=too_small,
        too_large=len(pairs) - right - too_small,
        memory_error=float(absolute_errors(pairs[:, 0], pairs[:, 1]).mean()),
        measured_slices=dict(sorted(slices.items())),
    )


def apply_equation_2(memory_mb: float) -> str:
    """Slice of an A100 with 40 GB by Eq. 2 of the paper, ``"none"`` where it gives none."""
    return choose_mig(memory_mb, find_device(MIG_DEVICE), policy=MigPolicy.PAPER) or "none"


def _examples(samples: GraphSamples, run: Run, chosen: BoolArray) -> list[ComparedRow]:
    memory = samples.targets[:, METRICS.index("memory_mb")]
    known = np.flatnonzero(chosen & np.isfinite(memory))
    picked = dict.fromkeys((int(known[memory[known].argmin()]), int(known[memory[known].argmax()])))
    return list(_compare(samples, run, picked))
