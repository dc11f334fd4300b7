"""The epochs of a training under Lightning: checkpoints, resume, early stopping, logs."""

from __future__ import annotations

import logging
import pickle
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dippm.errors import DippmError
from dippm.training.graph_batches import BatchedSamples
from dippm.training.graph_network import MONITORED, GraphData, NetworkModule, TargetScaling
from dippm.training.lightning import pl
from dippm.training.settings import TrainingSettings

__all__ = [
    "EpochReport",
    "OnEpoch",
    "PastEpochs",
    "RunEpochs",
    "TrainingJob",
    "TrainingRun",
    "is_on_gpu",
    "quiet_lightning",
    "read_checkpoint",
]

_CHECKPOINTS = "checkpoints"
_LAST = "last"


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """One epoch, as it ends.

    Args:
        epoch: Its number, from 1.
        epochs: How many there are at most.
        train_loss: Mean loss over the training split, dropout on.
        val_loss: Loss on the validation split.
        val_mape_percent: Validation error, the mean over the metrics, %.
    """

    epoch: int
    epochs: int
    train_loss: float
    val_loss: float
    val_mape_percent: float


OnEpoch = Callable[[EpochReport], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """What the epochs of a training left behind.

    Args:
        best: Checkpoint of the best epoch.
        device: Where it was trained.
    """

    best: Path
    device: str


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint holds.

    Raises:
        DippmError: ``checkpoint.unreadable`` where it was cut off or damaged.
    """
    try:
        stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as exc:
        why = (str(exc).splitlines() or ["it is cut off"])[0]
        raise DippmError(
            f"The checkpoint '{path}' cannot be read: {why.rstrip('.')}.",
            code="checkpoint.unreadable",
            cure="Remove it. Without its last checkpoint a training begins again with its first epoch.",
        ) from exc
    return stored


@dataclass(frozen=True, kw_only=True, slots=True)
class PastEpochs:
    """What the last checkpoint of a training has behind it.

    Args:
        epochs: Epochs that were run, in all calls.
        without_gain: How many the last of them are that brought no better validation error.
        duration_s: Their wall time, s, without the breaks between calls and what an interrupt left unfinished.
        run: Where the best of them lies, and where they were trained.
    """

    epochs: int
    without_gain: int
    duration_s: float
    run: TrainingRun

    @classmethod
    def read(cls, path: Path) -> PastEpochs:
        """Read a checkpoint; whoever runs the epochs does not know all of it where other processes do the work.

        Raises:
            DippmError: ``checkpoint.unreadable``.
        """
        stored = read_checkpoint(path)
        states: list[dict[str, Any]] = list(stored["callbacks"].values())
        stop = next(state for state in states if "wait_count" in state)
        best = next(state for state in states if state.get("monitor") == MONITORED)
        # Earlier versions noted no history.
        unknown: dict[str, Any] = {"duration_s": 0.0, "device": "unknown"}
        history = next((state for state in states if "duration_s" in state), unknown)
        return cls(
            epochs=int(stored["epoch"]) + 1,
            without_gain=int(stop["wait_count"]),
            duration_s=float(history["duration_s"]),
            run=TrainingRun(best=path.parent / Path(best["best_model_path"]).name, device=str(history["device"])),
        )

    def is_all_of(self, settings: TrainingSettings) -> bool:
        """Whether a training with these settings has nothing left to run."""
        return self.epochs >= settings.epochs or self.without_gain >= settings.patience


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingJob:
    """The epochs of a training, for whoever runs them; in several processes each has its own copy.

    Args:
        samples: All samples, scaled.
        parts: Part of each.
        settings: How to train.
        folder: For checkpoints and logs; all processes must see it.
        network: The network, with the weights to begin with.
        scaling: How the targets were scaled.
        learning_rate: The rate.
        graphs_per_pass: Graphs that are predicted at once.
    """

    samples: BatchedSamples
    parts: npt.NDArray[np.int8]
    settings: TrainingSettings
    folder: Path
    network: nn.Module
    scaling: TargetScaling
    learning_rate: float
    graphs_per_pass: int

    @property
    def last(self) -> Path:
        """Checkpoint after the last epoch that was run."""
        return self.folder / _CHECKPOINTS / f"{_LAST}.ckpt"

    def run(self, on_epoch: OnEpoch | None = None, *, workers: Mapping[str, Any] | None = None) -> TrainingRun:
        """Run all epochs, those left out that the folder's last checkpoint has behind it.

        Args:
            on_epoch: Called after every epoch.
            workers: Arguments of Lightning's trainer by which this process takes part in a training of several that
                were started by somebody else; None where Lightning starts what it needs.
        """
        settings = self.settings
        module = NetworkModule(
            self.network.cpu(),
            scaling=self.scaling,
            learning_rate=self.learning_rate,
            schedule=settings.schedule,
            seed=settings.seed,
        )
        data = GraphData(
            self.samples,
            self.parts,
            batch_size=settings.batch_size,
            seed=settings.seed,
            graphs_per_pass=self.graphs_per_pass,
        )
        best = _best_checkpoint(self.folder)
        with quiet_lightning():
            trainer = _make_trainer(settings, self.folder, best, on_epoch, workers)
            last = self.last if self.last.is_file() else None
            trainer.fit(module, datamodule=data, ckpt_path=last, weights_only=True)
        return TrainingRun(best=Path(best.best_model_path), device=_name_device(settings))


RunEpochs = Callable[[TrainingJob, OnEpoch | None], TrainingRun]
"""Runs the epochs of a training elsewhere, such as on a cluster, and tells of each as it ends."""


def is_on_gpu(settings: TrainingSettings) -> bool:
    """Whether this process trains on a GPU."""
    return torch.cuda.is_available() and settings.accelerator != "cpu"


def _name_device(settings: TrainingSettings) -> str:
    return torch.cuda.get_device_name() if is_on_gpu(settings) else "cpu"


def _best_checkpoint(folder: Path) -> pl.callbacks.ModelCheckpoint:
    return pl.callbacks.ModelCheckpoint(
        dirpath=folder / _CHECKPOINTS,
        filename="best-{epoch}",
        monitor=MONITORED,
        save_on_train_epoch_end=True,
    )


def _last_checkpoint(folder: Path) -> pl.callbacks.ModelCheckpoint:
    """Of every epoch, after all of it: a resume begins with the next one."""
    return pl.callbacks.ModelCheckpoint(
        dirpath=folder / _CHECKPOINTS,
        filename=_LAST,
        enable_version_counter=False,
        save_on_train_epoch_end=True,
    )


def _make_trainer(
    settings: TrainingSettings,
    folder: Path,
    best: pl.callbacks.ModelCheckpoint,
    on_epoch: OnEpoch | None,
    workers: Mapping[str, Any] | None,
) -> pl.Trainer:
    stop = _Patience(monitor=MONITORED, patience=settings.patience, check_on_train_epoch_end=True, check_finite=True)
    # The last one holds what the others know, so that it comes after them.
    callbacks: list[pl.Callback] = [stop, _History(_name_device(settings)), best, _last_checkpoint(folder)]
    # Processes that Lightning starts are its own; of those that somebody else started each has its callback.
    if on_epoch is not None and (settings.devices == 1 or workers is not None):
        callbacks.append(_Reporter(on_epoch, settings.epochs))
    # Every run and every resume logs to a version of its own.
    table = pl.loggers.CSVLogger(folder, name="logs")
    board = pl.loggers.TensorBoardLogger(folder, name="logs", version=table.version)
    # Processes that are spawned, not started by the command line once more: training is a call.
    own = {"devices": settings.devices, "strategy": "auto" if settings.devices == 1 else "ddp_spawn"}
    return pl.Trainer(
        accelerator="gpu" if is_on_gpu(settings) else "cpu",
        **(own if workers is None else workers),
        precision=_precision(settings),
        max_epochs=settings.epochs,
        callbacks=callbacks,
        logger=[table, board],
        default_root_dir=folder,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )


def _precision(settings: TrainingSettings) -> Literal["32-true", "16-mixed", "bf16-mixed"]:
    """CPUs that multiply 16 bits multiply bf16."""
    if not settings.mixed_precision:
        return "32-true"
    return "16-mixed" if is_on_gpu(settings) else "bf16-mixed"


class _Patience(pl.callbacks.EarlyStopping):
    """Stops after the patience that is asked for now; Lightning goes back to that of the checkpoint."""

    @property
    def state_key(self) -> str:
        """That of the class above, under which earlier versions wrote it down."""
        return super().state_key.replace(type(self).__name__, pl.callbacks.EarlyStopping.__name__)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})


class _History(pl.Callback):
    """Notes in every checkpoint how long its epochs took, and where they were trained."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._before_s = 0.0
        self._began = time.monotonic()

    def on_train_start(self, _trainer: pl.Trainer, _module: pl.LightningModule) -> None:
        self._began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"duration_s": self._before_s + time.monotonic() - self._began, "device": self._device}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before_s = state_dict["duration_s"]


class _Reporter(pl.Callback):
    def __init__(self, on_epoch: OnEpoch, epochs: int) -> None:
        self._on_epoch = on_epoch
        self._epochs = epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, _module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        self._on_epoch(
            EpochReport(
                epoch=trainer.current_epoch + 1,
                epochs=self._epochs,
                train_loss=float(metrics["train_loss"]),
                val_loss=float(metrics["val_loss"]),
                val_mape_percent=float(metrics[MONITORED]),
            )
        )


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning from talking and from ending the process; put back what it changes."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        interrupt = signal.getsignal(signal.SIGINT)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SystemExit as exc:
        # Lightning answers Ctrl-C by leaving; whether to leave is the caller's to say.
        signal.signal(signal.SIGINT, interrupt)
        raise KeyboardInterrupt from exc
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
