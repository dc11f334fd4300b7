"""What the measuring process needs to know of a model: how to make it again, in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dippm.frontends.inputs import InputShapes

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelSource"]


class ModelSource(Protocol):
    """Something small that can be pickled to a worker process and builds a model there."""

    @property
    def name(self) -> str:
        """What people call the model, such as ``"timm:resnet18"`` or ``"dippm-zoo/resnet/0a1b2c3d4e5f6071"``."""
        ...

    @property
    def model_key(self) -> str:
        """Equal for equal models and input shapes, whatever the batch: one built model serves them all."""
        ...

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        """Build the model with random weights on a device.

        Args:
            device: A torch device, such as ``"cuda:0"``, ``"cpu"`` or ``"meta"``. Tensors are made there from the
                start, never on the host first.

        Returns:
            The module, in evaluation mode, and the shapes of its inputs per sample.
        """
        ...
