"""Train what DNNPerf's evaluation compares."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import Part
from dippm.datasets.selection import METRICS
from dippm.datasets.training_samples import TrainingSamples
from dippm.errors import MissingExtraError
from dippm.models.dnnperf_registry import ANEE, DNNPERF_MODELS, DNNPERF_NETWORKS, TREES, make_dnnperf_network
from dippm.training.settings import ONE_CYCLE, TrainingSettings

__all__ = ["DnnperfTrainingSettings", "predict_steps"]

_NEEDED = ("torch", "torch_geometric", "lightning", "tensorboard")
# Training steps have a thousand operators: of more graphs at once the embeddings of edges outgrow every cache.
_GRAPHS_PER_PASS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class DnnperfTrainingSettings(TrainingSettings):
    """Settings of a training, with defaults for graphs of training steps; the paper names neither width nor rate."""

    models: ClassVar[tuple[str, ...]] = DNNPERF_MODELS

    model: str = ANEE
    epochs: int = 30
    hidden: int = 64
    learning_rate: float | str = 0.003
    schedule: str = ONE_CYCLE
    batch_size: int = 8


def predict_steps(
    samples: TrainingSamples,
    parts: npt.NDArray[np.int8],
    settings: DnnperfTrainingSettings,
    folder: Path,
    *,
    resume: bool = False,
) -> npt.NDArray[np.float64]:
    """Train on the training part, take the epoch that is best on the validation part, and predict every sample.

    Args:
        samples: All samples.
        parts: Part of each.
        settings: What to train, and how; trees take their seed alone from it.
        folder: For checkpoints, logs and trees.
        resume: Go on with the training that the folder holds.

    Returns:
        Predicted figures; those of a metric without labels mean nothing.

    Raises:
        UsageError: As :func:`dippm.training.fit_network.fit_network`.
        MissingExtraError: A package for training is not installed.
        DippmError: The training diverged.

    Shapes:
        Result: [S, 3].
    """
    if settings.model == TREES:
        from dippm.training.gradient_boosting import fit_trees

        trees = fit_trees(samples, parts, seed=settings.seed)
        trees.save(folder)
        return trees.predictions
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="train", purpose=f"train {settings.model}")
    from dippm.training.dnnperf_batches import prepare_tensors
    from dippm.training.fit_network import check_training, fit_samples

    check_training(parts, settings)
    variant = DNNPERF_NETWORKS[settings.model]
    tensors, scaling = prepare_tensors(
        samples, np.flatnonzero(parts == Part.TRAINING), scaler=variant.scaler, hides_costs=variant.hides_costs
    )
    fitted = fit_samples(
        tensors,
        parts,
        settings,
        folder,
        data_hash=samples.key,
        scaling=scaling,
        make=lambda: make_dnnperf_network(
            settings.model, hidden=settings.hidden, dropout=settings.dropout, outputs=len(METRICS), **tensors.widths
        ),
        graphs_per_pass=_GRAPHS_PER_PASS,
        resume=resume,
    )
    return fitted.predictions
