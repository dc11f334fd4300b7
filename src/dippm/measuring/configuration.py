"""What is to be measured of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.precision import Precision, precision_of_run
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import DType

__all__ = ["Configuration", "Engine"]


_BY_TORCH = "The engine torch takes models by name and PyTorch's own files."


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
                "Training needs an optimizer.",
                code="optimizer.missing",
                cure="Use sgd, momentum, adam, adamw, adamw-fused, adamw-8bit, adafactor, rmsprop or none.",
            )
        if self.engine is Engine.ONNXRUNTIME and (is_training or self.conditions.runtime is not Runtime.EAGER):
            raise UnsupportedError(
                "onnxruntime is measured in inference alone, without a runtime of PyTorch's.",
                code="engine.unsupported",
                cure=_BY_TORCH,
            )

    def check_torch(self, device: str) -> None:
        """Refuse a runtime that PyTorch does not have on a device, or that training is not measured with.

        Args:
            device: ``"cpu"``, or a GPU.

        Raises:
            UnsupportedError: ``runtime.unsupported``.
        """
        if self.conditions.runtime is not Runtime.CUDA_GRAPH:
            return
        is_training = self.conditions.mode is Mode.TRAINING
        if is_training or device == "cpu":
            raise UnsupportedError(
                "Training is not measured with CUDA graphs."
                if is_training
                else f"CUDA graphs run on CUDA devices; this is '{device}'.",
                code="runtime.unsupported",
                cure="Use the runtime eager or compile.",
            )

    def check_onnxruntime(self, device: str, *, is_file: bool, stored: DType | None = None) -> None:
        """Refuse a precision or layout that onnxruntime cannot be told to use.

        Args:
            device: ``"cpu"``, or a GPU.
            is_file: Whether it runs an ONNX file, whose formats stay what they are.
            stored: The 16-bit format that the model's weights are stored in, if they are.

        Raises:
            UnsupportedError: ``engine.unsupported``.
        """
        allowed = {Precision.FP32_STRICT, Precision.TF32}
        if device == "cpu":
            allowed.add(Precision.FP32)
        if not is_file:
            allowed |= {Precision.FP16, Precision.BF16}
        if stored is not None:
            allowed.add(precision_of_run(Precision.FP32, stored))
        if self.conditions.precision not in allowed:
            names = ", ".join(precision.value for precision in Precision if precision in allowed)
            formats = ", and the formats of a file stay" if is_file else ""
            raise UnsupportedError(
                f"onnxruntime on {device} has no precision {self.conditions.precision.value}: TF32 is on or off for "
                f"all of its operators on a GPU, it has no autocast{formats}.",
                code="engine.unsupported",
                cure=f"Use one of {names}. {_BY_TORCH}",
            )
        if self.conditions.layout is not Layout.NCHW:
            raise UnsupportedError(
                "onnxruntime chooses the layout itself.", code="engine.unsupported", cure="Use the layout nchw."
            )
