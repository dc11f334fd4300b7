"""The PyTorch model that every tool is asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def create_resnet50() -> torch.nn.Module:
    """Build timm's ResNet-50, ready for inference."""
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    # timm imports torchvision, whose compiled operators need not match the installed torch.
    import_torchvision_ops()
    import timm

    return timm.create_model("resnet50").eval()
