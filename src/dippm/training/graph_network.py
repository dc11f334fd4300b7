"""A graph network under Lightning: loss, errors and optimizer of a step, and the batches of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dippm.datasets.graph_samples import Part
from dippm.datasets.selection import METRICS
from dippm.features.scaling import Scaling
from dippm.training.graph_batches import EpochBatches, GraphBatch, GraphTensors
from dippm.training.lightning import pl
from dippm.training.settings import CONSTANT

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

__all__ = ["MONITORED", "GraphData", "NetworkModule", "masked_huber_loss", "predict_samples"]

MONITORED = "val_mape"
"""What early stopping and the best checkpoint go by: the validation error, the mean over the metrics, %."""

_GRAPHS_PER_PASS = 256
_RISING_SHARE = 0.1


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
        network: Called with the first four fields of a :class:`GraphBatch`.
        scaling: Scaling of the targets.
        learning_rate: Adam's.
        schedule: Of the learning rate, as in :class:`dippm.training.settings.TrainingSettings`.
        seed: Seed of the dropout.
    """

    def __init__(self, network: nn.Module, *, scaling: Scaling, learning_rate: float, schedule: str, seed: int) -> None:
        super().__init__()
        self._schedule = schedule
        self.network = network
        self.learning_rate = learning_rate
        self._seed = seed
        self._spread = torch.from_numpy(scaling.target_std).float()
        self._errors = torch.zeros(2, len(METRICS))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Scaled outputs of a batch, [G, 3]."""
        outputs: Tensor = self.network(*batch[:4])
        return outputs

    def on_train_batch_start(self, _batch: GraphBatch, _index: int) -> None:
        """Draw the dropout of a step from seed and step alone: a resume needs no stored state."""
        mixed = np.random.SeedSequence((self._seed, self.global_step, self.global_rank)).generate_state(1)
        torch.manual_seed(int(mixed[0]))

    def training_step(self, batch: GraphBatch, _index: int) -> Tensor:
        """Loss of a batch."""
        loss = masked_huber_loss(self(batch).float(), batch.targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.targets), sync_dist=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self._errors = torch.zeros(2, len(METRICS), device=self.device)

    def validation_step(self, batch: GraphBatch, _index: int) -> None:
        """Loss and errors of a batch."""
        outputs = self(batch).float()
        loss = masked_huber_loss(outputs, batch.targets)
        self.log("val_loss", loss, on_epoch=True, batch_size=len(batch.targets))
        is_known = torch.isfinite(batch.targets)
        log_ratio = torch.where(is_known, outputs - batch.targets, 0.0) * self._spread.to(outputs.device)
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
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self.learning_rate,
            total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=_RISING_SHARE,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class GraphData(pl.LightningDataModule):
    """Batches of the training and the validation split.

    Args:
        tensors: All samples.
        parts: Part of each.
        batch_size: Graphs in a step of training.
        seed: Seed of the order.
    """

    def __init__(self, tensors: GraphTensors, parts: npt.NDArray[np.int8], *, batch_size: int, seed: int) -> None:
        super().__init__()
        self._tensors = tensors
        self._parts = parts
        self._batch_size = batch_size
        self._seed = seed

    def train_dataloader(self) -> DataLoader[GraphBatch]:
        """Batches in an order of their own each epoch."""
        return self._load(Part.TRAINING, batch_size=self._batch_size, seed=self._seed)

    def val_dataloader(self) -> DataLoader[GraphBatch]:
        """Large batches, the same in every process: it is a small part, and an empty share would block the others."""
        return self._load(Part.VALIDATION, batch_size=_GRAPHS_PER_PASS, seed=None)

    def _load(self, part: Part, *, batch_size: int, seed: int | None) -> DataLoader[GraphBatch]:
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
        return DataLoader(self._tensors.to(trainer.strategy.root_device), sampler=batches, batch_size=None)


def predict_samples(
    network: nn.Module, tensors: GraphTensors, scaling: Scaling, *, device: torch.device | str = "cpu"
) -> npt.NDArray[np.float64]:
    """Predict every sample, in the targets' units.

    Args:
        network: Left in evaluation mode on the device.
        tensors: Samples.
        scaling: Their scaling.
        device: Where to run.

    Shapes:
        Result: [S, 3].
    """
    network = network.to(device).eval()
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(tensors), _GRAPHS_PER_PASS):
            batch = tensors[list(range(start, min(start + _GRAPHS_PER_PASS, len(tensors))))]
            outputs.append(network(*(part.to(device) for part in batch[:4])).float().cpu())
    return scaling.unscale_targets(torch.cat(outputs).numpy())
