"""The conditions of a run that a prediction holds for, beside model, batch and device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from dippm.costs.precision import Precision
from dippm.errors import UsageError, quote

__all__ = ["Conditions", "Layout", "LowRankAdapters", "Mode", "Optimizer", "Runtime"]

_HIGHEST_RANK = 65_536
_LONGEST_RANK = 20
_DROPOUT = "dropout"


class Mode(StrEnum):
    """Forward pass alone, or a whole training step."""

    INFERENCE = "inference"
    TRAINING = "training"


class Layout(StrEnum):
    """Memory order of image tensors."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Runtime(StrEnum):
    """How kernels reach the device: one by one, compiled and fused, or replayed from a captured graph."""

    EAGER = "eager"
    COMPILE = "compile"
    CUDA_GRAPH = "cuda-graph"


class Optimizer(StrEnum):
    """What updates the weights in a training step, with the defaults of its class.

    ``MOMENTUM`` is SGD with momentum 0.9, ``ADAMW_FUSED`` AdamW with ``fused=True``, ``ADAFACTOR`` the class of
    ``torch.optim``, ``ADAMW_8BIT`` the one of bitsandbytes. ``NONE`` is a step without an update: forward and backward
    pass, as many published measurements take it.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"
    RMSPROP = "rmsprop"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class LowRankAdapters:
    """Low-rank adapters (LoRA, Hu et al., ICLR 2022): two thin layers beside each chosen one, which alone are trained.

    Args:
        rank: Columns of the first and rows of the second.
        targets: Names of the layers, whole or their last parts, as ``target_modules`` of PEFT; where there are none,
            all linear layers but the one that writes the model's output.
        has_dropout: Whether each drops some of its input (``lora_dropout`` of PEFT above 0).
    """

    rank: int
    targets: tuple[str, ...] = ()
    has_dropout: bool = False

    @classmethod
    def parse(cls, given: object) -> LowRankAdapters:
        """Read what users write: ``16``, ``"16"``, ``"16+dropout"`` or ``"16:q_proj,v_proj"``.

        Raises:
            UsageError: ``lora.invalid``.
        """
        # A whole number of thousands of digits cannot be written out.
        is_rank = not isinstance(given, bool) and (not isinstance(given, int) or 0 < given <= _HIGHEST_RANK)
        text = str(given) if is_rank else ""
        thin, colon, names = text.partition(":")
        number, plus, word = thin.partition("+")
        targets = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
        rank = int(number) if number.strip().isdecimal() and len(number) < _LONGEST_RANK else 0
        is_other = bool(plus) and word.strip().lower() != _DROPOUT
        if not 1 <= rank <= _HIGHEST_RANK or is_other or (colon and not all(targets)):
            raise UsageError(
                f"Adapters must be a rank from 1 to {_HIGHEST_RANK:,}, with the names of layers behind a colon where "
                f"not all get one, as 16, 16+dropout or 16:q_proj,v_proj. Got {quote(given)} instead.",
                code="lora.invalid",
            )
        return cls(rank=rank, targets=targets if colon else (), has_dropout=bool(plus))

    def __str__(self) -> str:
        dropout = f"+{_DROPOUT}" if self.has_dropout else ""
        return f"{self.rank}{dropout}{':' if self.targets else ''}{','.join(self.targets)}"


_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Conditions of a run.

    Args:
        precision: Arithmetic, with PyTorch's meaning of each name.
        mode: Inference or training.
        layout: Memory order of images.
        runtime: How kernels are launched.
        optimizer: What updates the weights; None outside training.
        accumulation: Batches whose gradients are added up before one update, in training; 1 elsewhere.
        is_checkpointed: Whether blocks compute their activations again in the backward pass, in training.
        adapters: The adapters that alone are trained; None where all weights are, and outside training.
    """

    precision: Precision = Precision.FP32
    mode: Mode = Mode.INFERENCE
    layout: Layout = Layout.NCHW
    runtime: Runtime = Runtime.EAGER
    optimizer: Optimizer | None = None
    accumulation: int = 1
    is_checkpointed: bool = False
    adapters: LowRankAdapters | None = None

    @classmethod
    def parse(
        cls,
        *,
        precision: str = "fp32",
        mode: str = "inference",
        layout: str = "nchw",
        runtime: str = "eager",
        optimizer: str | None = None,
        accumulation: int = 1,
        is_checkpointed: bool = False,
    ) -> Conditions:
        """Read the names that users write.

        Raises:
            UsageError: ``precision.unknown``, ``mode.unknown``, ``layout.unknown``, ``runtime.unknown`` or
                ``optimizer.unknown``.
        """
        return cls(
            precision=_choose(Precision, precision, what="precision"),
            mode=_choose(Mode, mode, what="mode"),
            layout=_choose(Layout, layout, what="layout"),
            runtime=_choose(Runtime, runtime, what="runtime"),
            optimizer=None if optimizer is None else _choose(Optimizer, optimizer, what="optimizer"),
            accumulation=accumulation,
            is_checkpointed=is_checkpointed,
        )


def _choose(choices: type[_Choice], given: str, *, what: str) -> _Choice:
    try:
        return choices(given.strip().lower() if isinstance(given, str) else given)
    except ValueError as exc:
        names = ", ".join(choice.value for choice in choices)
        raise UsageError(
            f"The {what} must be one of {names}. Got {quote(given)} instead.", code=f"{what}.unknown"
        ) from exc
