"""The one-cycle schedule of the learning rate, for trainings of any length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["one_cycle"]


def one_cycle(
    optimizer: torch.optim.Optimizer, *, peak: float, steps: int, rising_share: float
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Let the rate rise to its peak and fall to nearly nothing.

    Where the rise would be over with the first step, the rate begins near its peak: PyTorch's own schedule divides by
    the length of a rise that ends where it begins.

    Args:
        optimizer: Whose rate it is.
        peak: The largest rate, above 0.
        steps: Steps of the whole training, at least 1.
        rising_share: Share of the steps in which the rate rises, 0 to 1.

    Returns:
        The schedule, to be moved on after every step.
    """
    from torch.optim.lr_scheduler import OneCycleLR

    return OneCycleLR(
        optimizer, max_lr=peak, total_steps=steps, pct_start=rising_share if steps * rising_share > 1.0 else 0.0
    )
