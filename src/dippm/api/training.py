"""Train predictors on measured labels."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.api.arguments import check_optimizer
from dippm.api.datasets import open_labels
from dippm.api.report_files import find_obstacle
from dippm.costs.conditions import Conditions
from dippm.errors import MissingExtraError, UsageError
from dippm.features.pmgns import EdgeMode

if TYPE_CHECKING:
    from dippm.devices import DeviceSpec
    from dippm.predictors.pmgns import PmgnsPredictor
    from dippm.training.adaptation_report import AdaptationReport
    from dippm.training.epochs import EpochReport, RunEpochs
    from dippm.training.train_model import TrainingReport

__all__ = ["PRETRAIN_EPOCHS", "TRAINED_FOLDER", "adapt", "load_predictor", "train"]

TRAINED_FOLDER = "dippm-trained"
"""Where trained predictors and the graphs that they learned from go unless the caller says otherwise."""
PRETRAIN_EPOCHS = 20
"""Passes over the labels that a network learns from first, unless the caller says otherwise."""


def train(
    model: str = "pmgns",
    *,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    device: str | None = None,
    source: str | None = None,
    mode: str = "inference",
    precision: str = "fp32",
    layout: str = "nchw",
    runtime: str = "eager",
    optimizer: str | None = None,
    edges: str = "data",
    pretrain: str | os.PathLike[str] | None = None,
    pretrain_epochs: int = PRETRAIN_EPOCHS,
    epochs: int = 10,
    hidden: int = 512,
    dropout: float = 0.05,
    learning_rate: float | str = 2.754e-5,
    schedule: str = "constant",
    batch_size: int = 32,
    patience: int = 50,
    seed: int = 0,
    accelerator: str = "auto",
    devices: int = 1,
    mixed_precision: bool = False,
    jobs: int = 1,
    resume: bool = False,
    on_graph: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    run_epochs: RunEpochs | None = None,
) -> TrainingReport:
    """Train a predictor of memory, latency and energy on labels of one device under one set of conditions.

    Models are split 70/15/15 into training, validation and test. The weights of the epoch with the least validation
    error are kept, and intervals are calibrated on the validation split. Defaults are those of the DIPPM paper.

    Args:
        model: ``"pmgns"``, which is GraphSAGE; ``"gat"``, ``"gcn"``, ``"gin"``, ``"mlp"`` and the boosted trees
            ``"gbdt"`` to compare it with.
        data: A label store or a Parquet file of labels.
        out: Folder of the predictor, its checkpoints and logs; ``dippm-trained/MODEL`` when left out.
        cache: Folder of graphs; ``dippm-trained/graphs`` when left out. What it holds is not read again.
        device: Device of the labels, or a part of its name; needed where they are of several.
        source: Who measured; needed where the labels come from several.
        mode: ``"inference"`` or ``"training"``.
        precision: Precision of the labels.
        layout: Layout of the labels.
        runtime: Runtime of the labels.
        optimizer: Optimizer of labels of training; needed where they are of several.
        edges: ``"data"`` for edges along which tensors flow; ``"chain"`` for a line through all operators.
        pretrain: Labels of the same conditions that the network learns from first: those of another device, or
            predicted ones (:func:`dippm.predict_collection`). Models of the validation and test splits are left out.
        pretrain_epochs: Passes over them.
        epochs: Passes over the training split.
        hidden: Width of the network.
        dropout: Share of activations dropped while training.
        learning_rate: Adam's, or ``"auto"`` for the learning-rate finder.
        schedule: ``"constant"``, or ``"one-cycle"``: the rate rises to ``learning_rate`` and falls to next to nothing.
        batch_size: Graphs in a step.
        patience: Epochs without a better validation error after which training stops.
        seed: Seed of split, weights, dropout and order.
        accelerator: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        devices: Devices to train on side by side.
        mixed_precision: Train in mixed precision: fp16 on a GPU, bf16 on a CPU, which is faster on CPUs that multiply
            bf16 (AVX512-BF16, AMX) and slower on others. Trees refuse it.
        jobs: Processes that read models of which there is no graph yet.
        resume: Go on with the training that the folder holds. On a CPU the result is that of a run without a break.
            One that has ended is reported again, its ``epochs_before`` being all of its epochs; with more ``epochs``,
            or more ``patience`` where that ended it, it goes on.
        on_graph: Called with the number of models read and their total.
        on_epoch: Called after every epoch; not called with several devices, whose processes are their own.
        run_epochs: Runs a network's epochs elsewhere, such as on a cluster
            (:class:`dippm.cluster.training.RayEpochs`); this machine when left out.

    Returns:
        Errors of each split, and what was trained on what.

    Raises:
        UsageError: A setting is out of its range, no label or labels of several kinds are chosen, or the folder holds
            another training.
        MissingExtraError: A package for training is not installed.
        DippmError: The labels cannot be read, or the training diverged.
    """
    from dippm.datasets.selection import LabelSelection
    from dippm.training.settings import TrainingSettings
    from dippm.training.train_model import load_pretraining, load_samples, train_model

    settings = TrainingSettings(
        model=model,
        epochs=epochs,
        hidden=hidden,
        dropout=dropout,
        learning_rate=learning_rate,
        schedule=schedule,
        batch_size=batch_size,
        patience=patience,
        seed=seed,
        accelerator=accelerator,
        devices=devices,
        mixed_precision=mixed_precision,
    )
    check_optimizer(optimizer, mode)
    conditions = Conditions.parse(precision=precision, mode=mode, layout=layout, runtime=runtime, optimizer=optimizer)
    edge_mode = _parse_edges(edges)
    folder = Path(TRAINED_FOLDER) / model if out is None else Path(out)
    graphs = Path(TRAINED_FOLDER) / "graphs" if cache is None else Path(cache)
    with open_labels(data) as labels:
        samples = load_samples(
            labels,
            LabelSelection(conditions=conditions, device=device, source=source),
            graphs,
            edges=edge_mode,
            jobs=jobs,
            on_progress=on_graph,
        )
    pretraining = None
    if pretrain is not None:
        with open_labels(pretrain) as labels:
            pretraining = load_pretraining(
                labels,
                conditions,
                graphs,
                epochs=pretrain_epochs,
                edges=edge_mode,
                jobs=jobs,
                on_progress=on_graph,
            )
    return train_model(
        samples,
        settings,
        folder,
        edges=edge_mode,
        pretraining=pretraining,
        resume=resume,
        on_epoch=on_epoch,
        run_epochs=run_epochs,
    )


def adapt(
    data: str | os.PathLike[str],
    *,
    device: str | DeviceSpec | None = None,
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    seed: int = 0,
    on_graph: Callable[[int, int], None] | None = None,
    on_fold: Callable[[int, int], None] | None = None,
) -> AdaptationReport:
    """Adapt the shipped predictor to a device from some tens of labels of it.

    The networks are tuned a little on what they cover among the labels, and their intervals calibrated anew. Where the
    labels have energy, so is the power model.

    Args:
        data: A label store (path of an SQLite file, or the URL of a PostgreSQL database) or a Parquet file.
        device: The device, or a part of its name; may be left out where all labels are of one. One that the catalogue
            does not know is given by its figures, see :func:`load_device_file`.
        out: Folder of the predictor, for the ``predictor`` of :func:`predict`; ``dippm-trained/adapted-DEVICE`` when
            left out. An adapted predictor in it is replaced.
        cache: Folder of the graphs; ``dippm-trained/graphs`` when left out.
        jobs: Processes that read models of which there is no graph yet.
        seed: Seed of the folds and of the order.
        on_graph: Called with the number of models read and their total.
        on_fold: Called with the number of tunings done and their total.

    Returns:
        Errors before, and after on models that the tuning had not seen.

    Raises:
        UsageError: Labels of too few rows or models, of none or of several devices; ``train.exists`` where the folder
            is something else, ``train.unwritable`` where it cannot be.
        UnsupportedError: The catalogue lacks the device.
        MissingExtraError: A package for training is not installed.
        DippmError: The labels cannot be read.
    """
    if find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="train", purpose="adapt the predictor")
    from dippm.training.adapt_device import adapt_device
    from dippm.training.additive_adaptation import AdaptationSettings
    from dippm.training.device_labels import choose_device

    if out is not None:
        _check_adapted(Path(out))
    with open_labels(data) as labels:
        own, spec = choose_device(labels, device)
    folder = Path(TRAINED_FOLDER) / f"adapted-{_as_file_name(spec.name)}" if out is None else Path(out)
    if out is None:
        _check_adapted(folder)
    return adapt_device(
        own,
        spec,
        folder,
        cache=Path(TRAINED_FOLDER) / "graphs" if cache is None else Path(cache),
        settings=AdaptationSettings(seed=seed),
        jobs=jobs,
        on_graph=on_graph,
        on_fold=on_fold,
    )


def load_predictor(folder: str | os.PathLike[str]) -> PmgnsPredictor:
    """Read a predictor that :func:`train` wrote; it predicts the graphs of :func:`dippm.load`, without PyTorch.

    It answers for the device and the conditions of its labels alone, which its ``artefact`` names.

    Raises:
        UsageError: ``predictor.missing``.
        DippmError: ``artefact.unreadable``.
        UnsupportedError: ``artefact.model`` where it is not a PMGNS.
        MissingExtraError: safetensors is not installed.
    """
    from dippm.predictors.pmgns import PmgnsPredictor

    return PmgnsPredictor.load(folder)


def _check_adapted(folder: Path) -> None:
    """Refuse, before any work, a folder that an adapted predictor cannot go to; nothing is made."""
    from dippm.predictors.adapted import is_adapted

    # It is written beside its place, and put there as a whole.
    obstacle = find_obstacle(folder.resolve().parent)
    if not obstacle and folder.is_dir():
        obstacle = find_obstacle(folder)
    if obstacle:
        raise UsageError(
            f"The folder '{folder}' cannot be written to: {obstacle}.",
            code="train.unwritable",
            cure="Name another folder.",
        )
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_adapted(folder))):
        raise UsageError(
            f"'{folder}' is something else than the folder of an adapted predictor.",
            code="train.exists",
            cure="Name another folder.",
        )


def _as_file_name(device: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", device.lower()).strip("-")


def _parse_edges(name: str) -> EdgeMode:
    try:
        return EdgeMode(name)
    except ValueError as exc:
        raise UsageError(
            f"The edges must be one of {', '.join(EdgeMode)}. Got '{name}' instead.", code="edges.unknown"
        ) from exc
