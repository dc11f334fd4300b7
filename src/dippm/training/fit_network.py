"""Train one graph network: epochs, checkpoints and resume, learning rate, logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dippm.datasets.graph_samples import GraphSamples, Part
from dippm.errors import DippmError, UsageError
from dippm.features.scaling import Scaling
from dippm.models.registry import make_network
from dippm.training.epochs import (
    EpochReport,
    OnEpoch,
    PastEpochs,
    RunEpochs,
    TrainingJob,
    is_on_gpu,
    quiet_lightning,
    read_checkpoint,
)
from dippm.training.graph_batches import BatchedSamples, GraphTensors
from dippm.training.graph_network import GRAPHS_PER_PASS, TargetScaling, predict_samples
from dippm.training.learning_rate import find_learning_rate
from dippm.training.pretraining import Pretraining
from dippm.training.run_folder import writing_to
from dippm.training.settings import TrainingSettings

__all__ = [
    "EpochReport",
    "FittedNetwork",
    "OnEpoch",
    "RunEpochs",
    "check_training",
    "fit_network",
    "fit_samples",
]

_RUN_FILE = "run.json"
_BEFORE_FOLDER = "pretraining"
# At the rate of a network that knows nothing, what was learned first is unlearned: on 358 captured rows of an H200,
# after predicted ones, the test rows were met within 12.1 % at 0.003, and within 9.1 at a tenth of it.
_GOING_ON = 0.1
_PREFIX = "network."


_Scaling = TypeVar("_Scaling", bound=TargetScaling)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedNetwork(Generic[_Scaling]):
    """A trained network: the weights of its best epoch.

    Args:
        weights: Weights by name.
        scaling: Scaling, learned from the training split.
        learning_rate: The rate that was used.
        epochs: Epochs that were run, in all calls.
        epochs_before: Those of them that earlier calls had run.
        best_epoch: The one with the least validation error, from 1.
        predictions: Predicted figures of every sample, whatever its part.
        duration_s: Wall time of all epochs, s.
        device: Where it was trained.

    Shapes:
        predictions: [S, 3].
    """

    weights: Mapping[str, npt.NDArray[np.float32]]
    scaling: _Scaling
    learning_rate: float
    epochs: int
    epochs_before: int
    best_epoch: int
    predictions: npt.NDArray[np.float64]
    duration_s: float
    device: str


def fit_network(
    samples: GraphSamples,
    parts: npt.NDArray[np.int8],
    settings: TrainingSettings,
    folder: Path,
    *,
    pretraining: Pretraining | None = None,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
    run_epochs: RunEpochs | None = None,
) -> FittedNetwork[Scaling]:
    """Train a network, or go on with its training.

    Args:
        samples: All samples.
        parts: Part of each; scaling and weights come from the training split, the best epoch from the validation.
        settings: Which network and how.
        folder: For checkpoints and logs.
        pretraining: What it learns first, by the same settings; scaling comes from there then, and the training goes on
            from it at a tenth of its learning rate.
        resume: Go on where the folder holds a run of the same settings and data. On a CPU the result is that of a run
            without a break, to the bit. A run that has ended gives its result again.
        on_epoch: Called after every epoch; not called with several devices, whose processes are their own.
        run_epochs: Runs the epochs; this process when left out.

    Raises:
        UsageError: ``train.too_few`` where a split is empty, ``train.exists`` where the folder holds a run and
            ``resume`` is not set, ``train.other_run`` where that run had other settings or data,
            ``train.no_gpu`` where a GPU is asked for and there is none.
        DippmError: ``train.no_rate`` where no learning rate can be found, ``train.diverged``, ``train.no_checkpoint``.
    """
    check_training(parts, settings, is_elsewhere=run_epochs is not None)
    before = None
    if pretraining is not None:
        before = fit_network(
            pretraining.samples,
            pretraining.parts(samples, parts, seed=settings.seed),
            replace(settings, epochs=pretraining.epochs, patience=pretraining.epochs),
            folder / _BEFORE_FOLDER,
            resume=resume,
            on_epoch=on_epoch,
            run_epochs=run_epochs,
        )
        settings = replace(settings, learning_rate=_GOING_ON * before.learning_rate)

    scaling = _learn_scaling(samples, parts) if before is None else before.scaling

    def make() -> nn.Module:
        network = make_network(settings.model, hidden=settings.hidden, dropout=settings.dropout)
        if before is not None:
            network.load_state_dict({name: torch.from_numpy(values) for name, values in before.weights.items()})
        return network

    return fit_samples(
        GraphTensors.of(samples, scaling),
        parts,
        settings,
        folder,
        data_hash=samples.key if pretraining is None else f"{samples.key} after {pretraining.key}",
        scaling=scaling,
        make=make,
        resume=resume,
        on_epoch=on_epoch,
        run_epochs=run_epochs,
    )


def fit_samples(
    samples: BatchedSamples,
    parts: npt.NDArray[np.int8],
    settings: TrainingSettings,
    folder: Path,
    *,
    data_hash: str,
    scaling: _Scaling,
    make: Callable[[], nn.Module],
    graphs_per_pass: int = GRAPHS_PER_PASS,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
    run_epochs: RunEpochs | None = None,
) -> FittedNetwork[_Scaling]:
    """Train a network on samples that are scaled already; settings, errors and resume as of :func:`fit_network`.

    Args:
        samples: All samples, scaled.
        parts: Part of each.
        settings: How to train.
        folder: For checkpoints and logs.
        data_hash: Names the data, so that a resume goes on with the same.
        scaling: How the targets were scaled.
        make: Makes the network, with weights from torch's global generator, which ``settings.seed`` seeds.
        graphs_per_pass: Graphs that are predicted at once.
        resume: Go on with the run that the folder holds.
        on_epoch: Called after every epoch.
        run_epochs: Runs the epochs; this process when left out.
    """
    check_training(parts, settings, is_elsewhere=run_epochs is not None)
    rate = _open_run(folder, data_hash, settings, resume=resume)
    chosen = np.flatnonzero(parts == Part.TRAINING)
    with quiet_lightning(), torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = make()
        device = "cuda" if is_on_gpu(settings) else "cpu"
        if rate is None:
            rate = find_learning_rate(
                network.to(device), samples.to(device), chosen, batch_size=settings.batch_size, seed=settings.seed
            )
        job = TrainingJob(
            samples=samples,
            parts=parts,
            settings=settings,
            folder=folder,
            network=network.cpu(),
            scaling=scaling,
            learning_rate=rate,
            graphs_per_pass=graphs_per_pass,
        )
        before = PastEpochs.read(job.last) if job.last.is_file() else None
        if before is not None and before.is_all_of(settings):
            run = before.run
        else:
            _write_run(folder, data_hash, settings, learning_rate=rate)
            run = job.run(on_epoch) if run_epochs is None else run_epochs(job, on_epoch)
        weights, best_epoch = _read_best(run.best)
        network.load_state_dict(weights)
        predictions = predict_samples(network, samples, scaling, device=device, graphs_per_pass=graphs_per_pass)
    if not np.isfinite(predictions[(parts == Part.TRAINING) | (parts == Part.VALIDATION)]).all():
        raise DippmError(
            "The training diverged: predictions of its own samples are not numbers.",
            code="train.diverged",
            cure="Use a smaller learning rate.",
        )
    past = PastEpochs.read(job.last)
    return FittedNetwork(
        weights={name: tensor.float().cpu().numpy() for name, tensor in weights.items()},
        scaling=scaling,
        learning_rate=rate,
        epochs=past.epochs,
        epochs_before=0 if before is None else before.epochs,
        best_epoch=best_epoch,
        predictions=predictions,
        duration_s=past.duration_s,
        device=run.device,
    )


def _learn_scaling(samples: GraphSamples, parts: npt.NDArray[np.int8]) -> Scaling:
    chosen = np.flatnonzero(parts == Part.TRAINING)
    return Scaling.fit(samples.nodes_of(chosen), samples.static_features[chosen], samples.targets[chosen])


def check_training(parts: npt.NDArray[np.int8], settings: TrainingSettings, *, is_elsewhere: bool = False) -> None:
    """See that there is something to train on, and the devices that the settings name.

    Args:
        parts: Part of each sample.
        settings: The settings.
        is_elsewhere: Whether the devices are those of other machines, and not to be looked for here.

    Raises:
        UsageError: ``train.too_few``, ``train.no_gpu``.
    """
    for part in (Part.TRAINING, Part.VALIDATION):
        if not (parts == part).any():
            raise UsageError(
                f"The {part.name.lower()} split of {len(parts)} samples is empty.",
                code="train.too_few",
                cure="Train on labels of more models.",
            )
    if is_elsewhere:
        return
    is_gpu = is_on_gpu(settings)
    if settings.accelerator == "gpu" and not is_gpu:
        raise UsageError("PyTorch sees no GPU to train on.", code="train.no_gpu", cure="Use the accelerator cpu.")
    if is_gpu and settings.devices > torch.cuda.device_count():
        raise UsageError(
            f"PyTorch sees {torch.cuda.device_count()} GPUs. Got {settings.devices} devices instead.",
            code="train.no_gpu",
        )


def _open_run(folder: Path, data_hash: str, settings: TrainingSettings, *, resume: bool) -> float | None:
    """Begin a run in a folder, or find the one that is in it; returns the learning rate where it is known."""
    rate = settings.learning_rate
    path = folder / _RUN_FILE
    if not path.is_file():
        known = rate if isinstance(rate, float) else None
        _write_run(folder, data_hash, settings, learning_rate=known)
        return known
    if not resume:
        raise UsageError(
            f"The folder '{folder}' holds a training already.",
            code="train.exists",
            cure="Resume it, or name another folder.",
        )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        is_same = stored["data"] == data_hash and settings.describes_run(stored["settings"])
        found = stored["learning_rate"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"The run '{path}' cannot be read: {exc!r}.", code="train.other_run") from exc
    if not is_same:
        raise UsageError(
            f"The folder '{folder}' holds a training of other settings or data.",
            code="train.other_run",
            cure="Name the settings that it was started with, or another folder.",
        )
    return None if found is None else float(found)


def _write_run(folder: Path, data_hash: str, settings: TrainingSettings, *, learning_rate: float | None) -> None:
    content = {"settings": settings.to_dict(), "data": data_hash, "learning_rate": learning_rate}
    with writing_to(folder):
        (folder / _RUN_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read_best(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    if not path.is_file():
        raise DippmError(
            f"The best checkpoint of the training is not where it was written: '{path}'.",
            code="train.no_checkpoint",
            cure="Train in another folder.",
        )
    stored = read_checkpoint(path)
    weights = {
        name.removeprefix(_PREFIX): tensor for name, tensor in stored["state_dict"].items() if name.startswith(_PREFIX)
    }
    return weights, int(stored["epoch"]) + 1
