"""What is to be measured of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.errors import UnsupportedError, UsageError

__all__ = ["Configuration", "Engine"]


class Engine(StrEnum):
    """What runs the model."""

    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One way to run a model.

    Args:
        batch: Samples per call, at least 1.
        conditions: Precision, mode, layout, runtime and, in training, the optimizer.
        engine: What runs it; onnxruntime runs inference only.

    Raises:
        UsageError: ``batch.invalid``, or ``optimizer.missing`` for training without an optimizer.
        UnsupportedError: ``engine.unsupported`` where the engine cannot run it.
    """

    batch: int
    conditions: Conditions = field(default_factory=Conditions)
    engine: Engine = Engine.TORCH

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"A batch size must be 1 or more. Got {self.batch} instead.", code="batch.invalid")
        is_training = self.conditions.mode is Mode.TRAINING
        if is_training and self.conditions.optimizer is None:
            raise UsageError(
                "Training needs an optimizer.", code="optimizer.missing", cure="Use sgd, momentum, adam, adamw or none."
            )
        if self.engine is Engine.ONNXRUNTIME and (is_training or self.conditions.runtime is not Runtime.EAGER):
            raise UnsupportedError(
                "onnxruntime is measured in inference alone, without a runtime of PyTorch's.",
                code="engine.unsupported",
                cure="Use the engine torch.",
            )
