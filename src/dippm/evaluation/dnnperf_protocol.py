"""The evaluation of the DNNPerf paper on one data set of training steps.

Gao et al., "Runtime Performance Prediction for Deep Learning Models with Graph Neural Network" (ICSE-SEIP 2023): ANEE
beside BiRNN, ARNN, MLP, boosted trees and BRP-NAS; ANEE with parts taken out or exchanged; architectures that training
has nothing of. Errors are the paper's, mean relative error and root mean squared error. Beyond the paper, families are
left out in turn.

Training is the caller's: this module lies below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import Part, SampleTable
from dippm.datasets.selection import METRICS
from dippm.datasets.store.label import Label
from dippm.evaluation.dippm_report import SourceNoise
from dippm.evaluation.dnnperf_report import (
    OVERALL,
    ComparedStep,
    DnnperfReport,
    DnnperfSettings,
    ErrorPair,
    StepScore,
    UnseenScore,
)
from dippm.evaluation.label_noise import summarize_dataset
from dippm.evaluation.novelty import hold_out, leave_families_out
from dippm.evaluation.protocol_run import OnRun, Run, draw_tested_parts
from dippm.evaluation.relative_errors import absolute_errors
from dippm.models.dnnperf_registry import ABLATIONS, ANEE, BASELINES, DNNPERF_MODELS, TREES

__all__ = ["HELD_OUT_MODELS", "PredictSteps", "evaluate_dnnperf"]

#: Architectures that the paper keeps out of training, and how families of labels, or names of the timm zoo, call them.
UNSEEN: Mapping[str, tuple[str, ...]] = {
    "AlexNet": ("alexnet",),
    "VGG": ("vgg",),
    "OverFeat": ("overfeat",),
    "ResNet-V2": ("resnet-v2", "resnetv2"),
    "GRU": ("gru",),
}
HELD_OUT_MODELS = (ANEE, TREES)
"""What is trained where models are held out."""

_GROUPS = {"dnnperf-hpo": "HPO", "dnnperf-nas": "NAS"}

FloatArray = npt.NDArray[np.float64]
PartArray = npt.NDArray[np.int8]
BoolArray = npt.NDArray[np.bool_]


class PredictSteps(Protocol):
    """Trains on the training part and predicts every sample."""

    def __call__(self, parts: PartArray, *, model: str, seed: int) -> FloatArray:
        """Train and predict, [S, 3]; ``model`` is one of :data:`DNNPERF_MODELS`."""
        ...


def evaluate_dnnperf(
    samples: SampleTable,
    predict: PredictSteps,
    settings: DnnperfSettings,
    *,
    noise: Sequence[SourceNoise] = (),
    provenance: Mapping[str, Any] | None = None,
    on_run: OnRun | None = None,
) -> DnnperfReport:
    """Run the protocol.

    Args:
        samples: Samples of one selection of labels of training.
        predict: Trains on these samples.
        settings: How long, from which seed.
        noise: The labels' own noise, for the report.
        provenance: Command, versions and the like, for the report.
        on_run: Called before each training and at the end.

    Raises:
        UsageError: ``evaluation.too_few`` where there are no test rows.
        DippmError: ``evaluation.not_finite`` where a training came to nothing; whatever ``predict`` raises.
    """
    unseen_names = _name_unseen(samples.labels)
    unseen_parts = _hold_out(samples, unseen_names != "", seed=settings.seed)
    left_out = leave_families_out(samples, settings.family_groups, seed=settings.seed)
    plan: list[tuple[PartArray, str, int]] = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        parts = draw_tested_parts(samples, seed=seed)
        plan += [(parts, model, seed) for model in DNNPERF_MODELS]
    held_out = [*([] if unseen_parts is None else [unseen_parts]), *left_out.values()]
    plan += [(parts, model, settings.seed) for parts in held_out for model in HELD_OUT_MODELS]
    runs = list(_train(samples, predict, plan, on_run))
    compared, held = runs[: settings.seeds * len(DNNPERF_MODELS)], iter(runs[settings.seeds * len(DNNPERF_MODELS) :])
    pairs = zip(held, held, strict=True)
    unseen: list[UnseenScore] = []
    if unseen_parts is not None:
        runs_of_unseen = next(pairs)
        unseen = [
            _score_unseen(samples, runs_of_unseen, unseen_names == name, name)
            for name in UNSEEN
            if (unseen_names == name).any()
        ]
    by_family = [
        _score_unseen(samples, runs_of_group, (parts == Part.TEST) & (samples.families == family), family)
        for (families, parts), runs_of_group in zip(left_out.items(), pairs, strict=True)
        for family in families
        if ((parts == Part.TEST) & (samples.families == family)).any()
    ]
    return DnnperfReport(
        dataset=summarize_dataset(samples, noise),
        settings=settings,
        comparison=tuple(_score(samples, run) for run in compared if run.model in (ANEE, *BASELINES)),
        ablation=tuple(_score(samples, run) for run in compared if run.model in ABLATIONS),
        unseen=tuple(unseen),
        left_out=tuple(sorted(by_family, key=lambda each: -_first_error(each))),
        rows=tuple(_compare(samples, compared[0])),
        provenance=dict(provenance or {}),
    )


def _train(
    samples: SampleTable, predict: PredictSteps, plan: Sequence[tuple[PartArray, str, int]], on_run: OnRun | None
) -> Iterator[Run]:
    for done, (parts, model, seed) in enumerate(plan):
        if on_run is not None:
            on_run(done, len(plan), f"{model}, seed {seed}")
        predicted = predict(parts, model=model, seed=seed)
        yield Run.of(samples, parts, predicted, model=model, seed=seed)
    if on_run is not None:
        on_run(len(plan), len(plan), "")


def _name_unseen(labels: Sequence[Label]) -> npt.NDArray[np.str_]:
    """Name of the paper's unseen architecture that each label is of, ``""`` for most."""
    names = []
    for label in labels:
        recipe = label.recipe
        # A model of the timm zoo is named by its architecture; families of its labels put ResNet-V2 with ResNet.
        known_as = recipe.architecture.rsplit(":", 1)[-1] if recipe.architecture.startswith("zoo:") else recipe.family
        found = (name for name, words in UNSEEN.items() if any(known_as.startswith(word) for word in words))
        names.append(next(found, ""))
    return np.array(names)


def _hold_out(samples: SampleTable, is_held: BoolArray, *, seed: int) -> PartArray | None:
    """Parts whose test rows are the held ones; None where there are none, or nothing else to train on.

    Other rows whose graph or model is held out too, under another name, fall in no part.
    """
    held = [label for label, is_out in zip(samples.labels, is_held, strict=True) if is_out]
    names = {label.graph_hash for label in held} | {label.recipe.model_key for label in held}
    rest = [label for label in samples.labels if not names & {label.graph_hash, label.recipe.model_key}]
    if not held or not rest:
        return None
    return hold_out(samples, rest, held, seed=seed)


def _errors(predicted: FloatArray, measured: FloatArray) -> dict[str, ErrorPair]:
    """Errors of each metric that was measured and predicted."""
    relative = absolute_errors(predicted, measured)
    found = {}
    for column, metric in enumerate(METRICS):
        is_known = np.isfinite(relative[:, column])
        if is_known.any():
            difference = predicted[is_known, column] - measured[is_known, column]
            found[metric] = ErrorPair(
                mre_percent=float(relative[is_known, column].mean()),
                rmse=float(np.sqrt((difference**2).mean())),
            )
    return found


def _score(samples: SampleTable, run: Run) -> StepScore:
    is_test = run.parts == Part.TEST
    collections = np.array([label.recipe.collection for label in samples.labels])
    groups: dict[str, BoolArray] = {OVERALL: is_test}
    names = sorted(set(collections.tolist()))
    if len(names) > 1:
        groups |= {_GROUPS.get(name, name): is_test & (collections == name) for name in names}
    groups = {name: chosen for name, chosen in groups.items() if chosen.any()}
    fitted = {}
    for name, part in (("training", Part.TRAINING), ("validation", Part.VALIDATION)):
        errors = _errors(run.predicted[run.parts == part], samples.targets[run.parts == part])
        fitted[name] = {metric: pair.mre_percent for metric, pair in errors.items()}
    return StepScore(
        model=run.model,
        seed=run.seed,
        rows={part.name.lower(): int((run.parts == part).sum()) for part in Part if part is not Part.NONE},
        fitted_percent=fitted,
        test={name: _errors(run.predicted[chosen], samples.targets[chosen]) for name, chosen in groups.items()},
        group_rows={name: int(chosen.sum()) for name, chosen in groups.items()},
    )


def _score_unseen(samples: SampleTable, runs: Sequence[Run], chosen: BoolArray, name: str) -> UnseenScore:
    return UnseenScore(
        name=name,
        rows=int(chosen.sum()),
        errors={run.model: _errors(run.predicted[chosen], samples.targets[chosen]) for run in runs},
    )


def _first_error(score: UnseenScore) -> float:
    errors = score.errors[ANEE]
    return errors["latency_ms"].mre_percent if "latency_ms" in errors else 0.0


def _compare(samples: SampleTable, run: Run) -> Iterator[ComparedStep]:
    for index in np.flatnonzero(run.parts == Part.TEST).tolist():
        recipe = samples.labels[index].recipe
        known = [
            column
            for column in range(len(METRICS))
            if np.isfinite(samples.targets[index, column]) and np.isfinite(run.predicted[index, column])
        ]
        yield ComparedStep(
            model=f"{recipe.architecture} {recipe.model_key[:8]}",
            family=recipe.family,
            batch=recipe.batch,
            operators=int(samples.node_counts[index]),
            measured={METRICS[column]: float(samples.targets[index, column]) for column in known},
            predicted={METRICS[column]: float(run.predicted[index, column]) for column in known},
        )
