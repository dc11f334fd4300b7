"""A graph network under Lightning: loss, errors and optimizer of a step, and the batches of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dippm.datasets.graph_samples import Part
from dippm.datasets.selection import METRICS
from dippm.training.graph_batches import BatchedSamples, EpochBatches
from dippm.training.lightning import pl
from dippm.training.one_cycle import one_cycle
from dippm.training.settings import CONSTANT

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

__all__ = [
    "GRAPHS_PER_PASS",
    "MONITORED",
    "GraphData",
    "NetworkModule",
    "TargetScaling",
    "masked_huber_loss",
    "predict_samples",
]

MONITORED = "val_mape"
"""What early stopping and the best checkpoint go by: the validation error, the mean over the metrics, %."""

GRAPHS_PER_PASS = 256
"""Graphs that are predicted at once unless the caller says otherwise."""

_RISING_SHARE = 0.1


class TargetScaling(Protocol):
    """Scaling of the logarithms of the targets to mean 0 and deviation 1."""

    @property
    def target_std(self) -> npt.NDArray[np.float64]:
        """Standard deviations of the logarithms, [T]."""
        ...

    def unscale_targets(self, outputs: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
        """What a network says, in the targets' units."""
        ...


def masked_huber_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean Huber loss over the targets that are there; NaN marks those that are not.

    Shapes:
        outputs, targets: [G, T]; result: [].
    """
    is_known = torch.isfinite(targets)
    # Not a mean of selected entries: that of none would be NaN.
    loss = functional.huber_loss(outputs, torch.where(is_known, targets, outputs.detach()), reduction="sum")
    return loss / is_known.sum().clamp(min=1)


class NetworkModule(pl.LightningModule):
    """A network with its loss and optimizer.

    Args:
        network: Called with all of a batch but its targets.
        scaling: Scaling of the targets.
        learning_rate: Adam's.
        schedule: Of the learning rate, as in :class:`dippm.training.settings.TrainingSettings`.
        seed: Seed of the dropout.
    """

    def __init__(
        self, network: nn.Module, *, scaling: TargetScaling, learning_rate: float, schedule: str, seed: int
    ) -> None:
        super().__init__()
        self._schedule = schedule
        self.network = network
        self.learning_rate = learning_rate
        self._seed = seed
        self._spread = torch.from_numpy(scaling.target_std).float()
        self._errors = torch.zeros(2, len(METRICS))

    def forward(self, batch: tuple[Any, ...]) -> Tensor:
        """Scaled outputs of a batch, [G, 3]."""
        outputs: Tensor = self.network(*batch[:-1])
        return outputs

    def on_train_batch_start(self, _batch: tuple[Any, ...], _index: int) -> None:
        """Draw the dropout of a step from seed and step alone: a resume needs no stored state."""
        mixed = np.random.SeedSequence((self._seed, self.global_step, self.global_rank)).generate_state(1)
        torch.manual_seed(int(mixed[0]))

    def training_step(self, batch: tuple[Any, ...], _index: int) -> Tensor:
        """Loss of a batch."""
        loss = masked_huber_loss(self(batch).float(), batch[-1])
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[-1]), sync_dist=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self._errors = torch.zeros(2, len(METRICS), device=self.device)

    def validation_step(self, batch: tuple[Any, ...], _index: int) -> None:
        """Loss and errors of a batch."""
        outputs = self(batch).float()
        loss = masked_huber_loss(outputs, batch[-1])
        self.log("val_loss", loss, on_epoch=True, batch_size=len(batch[-1]))
        is_known = torch.isfinite(batch[-1])
        log_ratio = torch.where(is_known, outputs - batch[-1], 0.0) * self._spread.to(outputs.device)
        self._errors += torch.stack([torch.expm1(log_ratio).abs().sum(dim=0), is_known.sum(dim=0)])

    def on_validation_epoch_end(self) -> None:
        """Errors of the whole split, which every process goes through."""
        total, count = self._errors
        errors = 100.0 * total / count.clamp(min=1)
        is_known = count > 0
        for name, error, known in zip(METRICS, errors, is_known.tolist(), strict=True):
            if known:
                self.log(f"val_mape_{name}", error)
        self.log(MONITORED, errors[is_known].mean())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam, and the schedule of its rate."""
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        if self._schedule == CONSTANT:
            return optimizer
        schedule = one_cycle(
            optimizer,
            peak=self.learning_rate,
            steps=int(self.trainer.estimated_stepping_batches),
            rising_share=_RISING_SHARE,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class GraphData(pl.LightningDataModule):
    """Batches of the training and the validation split.

    Args:
        samples: All samples.
        parts: Part of each.
        batch_size: Graphs in a step of training.
        seed: Seed of the order.
        graphs_per_pass: Graphs in a step of validation.
    """

    def __init__(
        self,
        samples: BatchedSamples,
        parts: npt.NDArray[np.int8],
        *,
        batch_size: int,
        seed: int,
        graphs_per_pass: int = GRAPHS_PER_PASS,
    ) -> None:
        super().__init__()
        self._samples = samples
        self._graphs_per_pass = graphs_per_pass
        self._parts = parts
        self._batch_size = batch_size
        self._seed = seed

    def train_dataloader(self) -> DataLoader[tuple[Any, ...]]:
        """Batches in an order of their own each epoch."""
        return self._load(Part.TRAINING, batch_size=self._batch_size, seed=self._seed)

    def val_dataloader(self) -> DataLoader[tuple[Any, ...]]:
        """Large batches, the same in every process: it is a small part, and an empty share would block the others."""
        return self._load(Part.VALIDATION, batch_size=self._graphs_per_pass, seed=None)

    def _load(self, part: Part, *, batch_size: int, seed: int | None) -> DataLoader[tuple[Any, ...]]:
        trainer: Any = self.trainer
        is_shared = seed is not None
        batches = EpochBatches(
            np.flatnonzero(self._parts == part),
            batch_size=batch_size,
            seed=seed,
            rank=trainer.global_rank if is_shared else 0,
            processes=trainer.world_size if is_shared else 1,
        )
        # All samples lie on the device from the start: a batch is gathered there, and nothing is copied in a step. The
        # sampler gives whole batches, and the samples are indexed by them.
        samples: Any = self._samples.to(trainer.strategy.root_device)
        return DataLoader(samples, sampler=batches, batch_size=None)


def predict_samples(
    network: nn.Module,
    samples: BatchedSamples,
    scaling: TargetScaling,
    *,
    device: torch.device | str = "cpu",
    graphs_per_pass: int = GRAPHS_PER_PASS,
) -> npt.NDArray[np.float64]:
    """Predict every sample, in the targets' units.

    Args:
        network: Left in evaluation mode on the device.
        samples: Samples.
        scaling: Their scaling.
        device: Where to run.
        graphs_per_pass: Graphs that are predicted at once.

    Shapes:
        Result: [S, 3].
    """
    network, samples = network.to(device).eval(), samples.to(device)
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(samples), graphs_per_pass):
            batch = samples[list(range(start, min(start + graphs_per_pass, len(samples))))]
            outputs.append(network(*batch[:-1]).float().cpu())
    return scaling.unscale_targets(torch.cat(outputs).numpy())
