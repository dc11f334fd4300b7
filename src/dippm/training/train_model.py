"""From labels to a predictor in a folder: select, read graphs, split, train, calibrate, write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions
from dippm.datasets.disturbances import take_out_disturbances
from dippm.datasets.graph_samples import GraphSamples, OnProgress, Part, assign_parts, build_samples
from dippm.datasets.selection import METRICS, LabelSelection, merge_repeats
from dippm.datasets.store.label import Label
from dippm.errors import MissingExtraError, UsageError
from dippm.evaluation.relative_errors import mape_percent
from dippm.features.pmgns import STATIC_COLUMNS, EdgeMode
from dippm.features.scaling import Scaling
from dippm.measuring.measurement import SoftwareStack
from dippm.predictors.network_artefact import MANIFEST_FILE, NetworkArtefact, write_weights
from dippm.training.pretraining import Pretraining
from dippm.training.settings import TREES, TrainingSettings
from dippm.training.versions import find_versions

if TYPE_CHECKING:
    from dippm.training.epochs import OnEpoch, RunEpochs

__all__ = ["TrainingReport", "load_pretraining", "load_samples", "predict_with", "train_model"]

_COVERAGE = 0.9
_NEEDED = {False: ("torch", "torch_geometric", "lightning", "tensorboard", "safetensors"), True: ("lightgbm",)}

FloatArray = npt.NDArray[np.float64]
PartArray = npt.NDArray[np.int8]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReport:
    """What a training came to.

    Args:
        model: Which network, or ``"gbdt"``.
        folder: Where the predictor lies.
        samples: Samples of each part.
        models: Distinct models of each part.
        unread: Models left out because their graph cannot be read: model key to reason.
        mape_percent: Part to metric, and ``"mean"``, to mean absolute percentage error.
        learning_rate: The rate that was used; None for trees.
        epochs: Epochs run, in all calls; 0 for trees.
        epochs_before: Those of them that earlier calls had run: all where the training had ended already.
        best_epoch: The epoch that the weights are of; 0 for trees.
        duration_s: Wall time of the training, s: of all epochs, or of the trees.
        device: Where it was trained.
    """

    model: str
    folder: str
    samples: Mapping[str, int]
    models: Mapping[str, int]
    unread: Mapping[str, str]
    mape_percent: Mapping[str, Mapping[str, float]]
    learning_rate: float | None
    epochs: int
    epochs_before: int
    best_epoch: int
    duration_s: float
    device: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Fitted:
    predictions: FloatArray
    scaling: Scaling | None = None
    learning_rate: float | None = None
    epochs: int = 0
    epochs_before: int = 0
    best_epoch: int = 0
    duration_s: float = 0.0
    device: str = "cpu"


def load_samples(
    labels: Iterable[Label],
    selection: LabelSelection,
    cache: Path,
    *,
    edges: EdgeMode = EdgeMode.DATA,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> GraphSamples:
    """Samples of the labels of a selection, disturbances taken out and repeats merged.

    Raises:
        UsageError: As :meth:`LabelSelection.choose` and :func:`build_samples`.
    """
    chosen = merge_repeats(take_out_disturbances(selection.choose(labels)))
    return build_samples(chosen, cache, edges=edges, jobs=jobs, on_progress=on_progress)


def load_pretraining(
    labels: Iterable[Label],
    conditions: Conditions,
    cache: Path,
    *,
    epochs: int,
    edges: EdgeMode = EdgeMode.DATA,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> Pretraining:
    """What a network is to learn first: labels of the same conditions, of one device, whichever it is.

    Raises:
        UsageError: As :func:`load_samples`.
    """
    selection = LabelSelection(conditions=conditions)
    samples = load_samples(labels, selection, cache, edges=edges, jobs=jobs, on_progress=on_progress)
    return Pretraining(samples=samples, epochs=epochs)


def train_model(
    samples: GraphSamples,
    settings: TrainingSettings,
    folder: Path,
    *,
    edges: EdgeMode = EdgeMode.DATA,
    pretraining: Pretraining | None = None,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
    run_epochs: RunEpochs | None = None,
) -> TrainingReport:
    """Train on 70 % of the samples, choose and calibrate on 15 %, report the errors on the last 15 %, too.

    The split is by model and the seed's. Intervals are calibrated on the split that the best epoch was chosen on,
    so they are a little too narrow.

    Args:
        samples: Samples of one selection.
        settings: What to train and how.
        folder: Where the predictor goes, its checkpoints and logs beside it.
        edges: Edges that the samples have.
        pretraining: What a network learns first.
        resume: Go on with the training that the folder holds.
        on_epoch: Called after every epoch.
        run_epochs: Runs a network's epochs; this process when left out.

    Raises:
        UsageError: As :func:`dippm.training.fit_network.fit_network`, ``train.exists`` too where the folder holds
            trees; ``train.not_divided`` for trees whose training is to run elsewhere, ``train.no_pretraining`` for
            trees that are to learn something first.
        MissingExtraError: A package for training is not installed.
    """
    if not resume and (folder / MANIFEST_FILE).is_file():
        raise UsageError(
            f"The folder '{folder}' holds a predictor already.",
            code="train.exists",
            cure="Name another folder, or resume it.",
        )
    parts = assign_parts(samples, seed=settings.seed)
    fitted = _fit(
        samples,
        parts,
        settings,
        folder,
        pretraining=pretraining,
        resume=resume,
        on_epoch=on_epoch,
        run_epochs=run_epochs,
    )
    errors = {
        part.name.lower(): mape_percent(fitted.predictions[parts == part], samples.targets[parts == part])
        for part in (Part.TRAINING, Part.VALIDATION, Part.TEST)
    }
    is_learned = np.isfinite(samples.targets[parts == Part.TRAINING]).any(axis=0)
    report = TrainingReport(
        model=settings.model,
        folder=str(folder),
        samples=_count(samples, parts, models=False),
        models=_count(samples, parts, models=True),
        unread=samples.unread,
        mape_percent=errors,
        learning_rate=fitted.learning_rate,
        epochs=fitted.epochs,
        epochs_before=fitted.epochs_before,
        best_epoch=fitted.best_epoch,
        duration_s=round(fitted.duration_s, 2),
        device=fitted.device,
    )
    if 0 < report.epochs == report.epochs_before and (folder / MANIFEST_FILE).is_file():
        return report  # nothing was trained: the manifest tells who did, when they did
    metrics = tuple(metric for metric, learned in zip(METRICS, is_learned, strict=True) if learned)
    NetworkArtefact(
        model=settings.model,
        metrics=metrics,
        edges=edges,
        scaling=fitted.scaling,
        spreads=_calibrate(fitted.predictions, samples.targets, parts, metrics),
        labels={**_describe_labels(samples), "trained_range": _trained_range(samples, parts)},
        errors_percent=errors,
        settings=settings.to_dict(),
        provenance={
            "data_hash": samples.key,
            "seed": settings.seed,
            "learning_rate": fitted.learning_rate,
            "epochs": fitted.epochs,
            "best_epoch": fitted.best_epoch,
            "pretraining": None if pretraining is None else pretraining.describe(),
            "duration_s": report.duration_s,
            "trained_on": fitted.device,
            "versions": find_versions(),
        },
    ).write(folder)
    return report


def predict_with(
    samples: GraphSamples,
    parts: PartArray,
    settings: TrainingSettings,
    folder: Path,
    *,
    pretraining: Pretraining | None = None,
    resume: bool = False,
) -> FloatArray:
    """Train on given parts and predict every sample: what evaluation needs of a training. Trees learn nothing first.

    Shapes:
        Result: [S, 3].
    """
    first = None if settings.model == TREES else pretraining
    return _fit(samples, parts, settings, folder, pretraining=first, resume=resume).predictions


def _fit(
    samples: GraphSamples,
    parts: PartArray,
    settings: TrainingSettings,
    folder: Path,
    *,
    pretraining: Pretraining | None,
    resume: bool,
    on_epoch: OnEpoch | None = None,
    run_epochs: RunEpochs | None = None,
) -> _Fitted:
    is_tree = settings.model == TREES
    if is_tree and run_epochs is not None:
        raise UsageError(
            f"Trees have no epochs that several workers could share. Got the model '{settings.model}'.",
            code="train.not_divided",
            cure="Train them without a cluster: it takes seconds.",
        )
    if is_tree and pretraining is not None:
        raise UsageError(
            f"Trees are made anew from what they learn. Got the model '{settings.model}' with other labels to learn "
            "from first.",
            code="train.no_pretraining",
            cure="Leave them out, or train a network.",
        )
    for package in _NEEDED[is_tree]:
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="train", purpose=f"train {settings.model}")
    if is_tree:
        from dippm.training.gradient_boosting import fit_trees

        trees = fit_trees(samples, parts, seed=settings.seed)
        trees.save(folder)
        return _Fitted(predictions=trees.predictions, duration_s=trees.duration_s)
    from dippm.training.fit_network import fit_network

    network = fit_network(
        samples,
        parts,
        settings,
        folder,
        pretraining=pretraining,
        resume=resume,
        on_epoch=on_epoch,
        run_epochs=run_epochs,
    )
    write_weights(folder, network.weights)
    return _Fitted(**{field.name: getattr(network, field.name) for field in fields(_Fitted)})


def _calibrate(
    predicted: FloatArray, measured: FloatArray, parts: PartArray, metrics: tuple[str, ...]
) -> dict[str, float]:
    """Split conformal prediction: the rank that covers a new model with 90 %, of the absolute log errors."""
    spreads = {}
    for column, metric in enumerate(METRICS):
        if metric not in metrics:
            continue
        chosen = parts == Part.VALIDATION
        scores = np.abs(np.log(predicted[chosen, column] / measured[chosen, column]))
        scores = np.sort(scores[np.isfinite(scores)])
        rank = math.ceil((len(scores) + 1) * _COVERAGE)
        if rank <= len(scores):
            spreads[metric] = float(scores[rank - 1])
    return spreads


def _count(samples: GraphSamples, parts: PartArray, *, models: bool) -> dict[str, int]:
    counts = {}
    for part in (Part.TRAINING, Part.VALIDATION, Part.TEST):
        keys = [samples.labels[index].recipe.model_key for index in np.flatnonzero(parts == part)]
        counts[part.name.lower()] = len(set(keys)) if models else len(keys)
    return counts


def _describe_labels(samples: GraphSamples) -> dict[str, Any]:
    first = samples.labels[0]
    conditions = first.configuration.conditions
    software = {
        field.name: sorted({str(getattr(label.measurement.software, field.name)) for label in samples.labels})
        for field in fields(SoftwareStack)
    }
    return {
        "device": first.measurement.device,
        "source": first.source,
        # No label has adapters.
        "conditions": {name: value for name, value in asdict(conditions).items() if name != "adapters"},
        "software": software,
        "samples": len(samples),
        "collections": sorted({label.recipe.collection for label in samples.labels}),
        "families": sorted({label.recipe.family for label in samples.labels}),
    }


def _trained_range(samples: GraphSamples, parts: PartArray) -> dict[str, tuple[float, float]]:
    """Least and largest of what tells the sizes of the training split."""
    statics = samples.static_features.T
    sizes = {name: statics[STATIC_COLUMNS.index(name)] for name in ("batch", "macs")}
    sizes["operators"] = samples.node_counts.astype(np.float64)
    chosen = parts == Part.TRAINING
    return {name: (float(values[chosen].min()), float(values[chosen].max())) for name, values in sizes.items()}
