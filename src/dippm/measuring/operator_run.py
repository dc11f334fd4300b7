"""What a trace holds: the operators of one call, each with the kernels that it launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KernelRun", "OperatorRun"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRun:
    """One kernel, copy or fill on the device.

    Args:
        name: Name, with the arguments of templates.
        launched_by: Innermost operator that launched it, such as ``"aten::cudnn_convolution"``, or ``"aten::copy_"``
            for a cast of autocast's.
        start_us: When it began, counted from the first of the call, microseconds.
        duration_us: How long it took, microseconds.
    """

    name: str
    launched_by: str
    start_us: float
    duration_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRun:
    """One operator as the model called it.

    Args:
        name: Operator, such as ``"aten::conv2d"`` or, in a way back, ``"aten::convolution_backward"``.
        input_shapes: Shapes of its arguments, ``()`` for one that is no tensor.
        scalars: Its arguments that are no tensors, as texts, ``""`` for a tensor; such as strides and groups.
        is_backward: Whether autograd called it on the way back.
        kernels: What it had the device do, in order.
    """

    name: str
    input_shapes: tuple[tuple[int, ...], ...]
    scalars: tuple[str, ...]
    is_backward: bool
    kernels: Sequence[KernelRun]

    @property
    def duration_us(self) -> float:
        """Time of its kernels, microseconds."""
        return sum(kernel.duration_us for kernel in self.kernels)
