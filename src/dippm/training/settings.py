"""Settings of a training, with the values of the DIPPM paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dippm.errors import UsageError
from dippm.models.registry import NETWORKS

__all__ = ["AUTO", "CONSTANT", "MODELS", "ONE_CYCLE", "TREES", "TrainingSettings"]

TREES = "gbdt"
"""Gradient-boosted trees on summed costs."""
MODELS = (*NETWORKS, TREES)
"""What can be trained: networks over graphs, and trees."""

AUTO = "auto"
CONSTANT = "constant"
ONE_CYCLE = "one-cycle"
_SCHEDULES = (CONSTANT, ONE_CYCLE)
_ACCELERATORS = (AUTO, "cpu", "gpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """What decides a training, beside its data. Defaults are those of Table 3 of the paper where it gives them.

    Args:
        model: One of :attr:`models`.
        epochs: Passes over the training split, at least 1; trees have none.
        hidden: Width of the network.
        dropout: Share of activations dropped while training, from 0 to below 1.
        learning_rate: Adam's, above 0, or ``"auto"``: the finder after Smith (2017).
        schedule: ``"constant"``, or ``"one-cycle"`` after Smith and Topin (2018): the rate rises to ``learning_rate``
            over the first tenth of the steps, and falls to next to nothing over the others.
        batch_size: Graphs in a step, at least 1.
        patience: Epochs without a better validation error after which it stops, at least 1.
        seed: Seed of split, weights, dropout and order.
        accelerator: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        devices: Devices to train on side by side, at least 1.
        mixed_precision: Autocast: fp16 on a GPU, bf16 on a CPU; of networks alone.

    Raises:
        UsageError: ``train.settings`` where a value is out of its range; ``mixed_precision.unused`` for trees.
    """

    models: ClassVar[tuple[str, ...]] = MODELS

    model: str = "pmgns"
    epochs: int = 10
    hidden: int = 512
    dropout: float = 0.05
    learning_rate: float | str = 2.754e-5
    schedule: str = CONSTANT
    batch_size: int = 32
    patience: int = 50
    seed: int = 0
    accelerator: str = AUTO
    devices: int = 1
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        rate = self.learning_rate
        rules = (
            ("model", self.model in self.models, f"one of {', '.join(self.models)}"),
            ("epochs", self.epochs >= 1, "1 or more"),
            ("hidden", self.hidden >= 1, "1 or more"),
            ("dropout", 0 <= self.dropout < 1, "at least 0 and below 1"),
            ("learning_rate", rate == AUTO or (isinstance(rate, float) and 0 < rate < 1), "between 0 and 1, or auto"),
            ("schedule", self.schedule in _SCHEDULES, f"one of {', '.join(_SCHEDULES)}"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
            ("patience", self.patience >= 1, "1 or more"),
            ("seed", self.seed >= 0, "0 or more"),
            ("accelerator", self.accelerator in _ACCELERATORS, f"one of {', '.join(_ACCELERATORS)}"),
            ("devices", self.devices >= 1, "1 or more"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise UsageError(
                    f"The {name.replace('_', ' ')} of a training must be {rule}. Got '{getattr(self, name)}' instead.",
                    code="train.settings",
                )
        if self.mixed_precision and self.model == TREES:
            raise UsageError(
                f"Mixed precision is a way to train networks; trees have none. Got the model '{self.model}' with it.",
                code="mixed_precision.unused",
                cure="Leave it out, or train a network.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def describes_run(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored run was started with these settings; it may go on for longer, on other devices.

        A schedule is laid out over all epochs, so that their number cannot change under way.
        """
        free = {"epochs", "patience", "accelerator", "devices"} - (set() if self.schedule == CONSTANT else {"epochs"})
        own = self.to_dict()
        return all(stored.get(name) == value for name, value in own.items() if name not in free)
