"""How far predictions are from measurements: the protocols behind ``dippm evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.evaluation.kernels import KernelReport

__all__ = ["evaluate"]

_PROTOCOLS = ("kernels",)


def evaluate(protocol: str, *, seed: int = 0, retrain: bool = False) -> KernelReport:
    """Run an evaluation protocol.

    Args:
        protocol: ``"kernels"``: single operators on shapes, and on devices, that training left out.
        seed: Seed of the split.
        retrain: Train again for each device left out, instead of showing the errors stored with the artefact.

    Raises:
        UsageError: ``protocol.unknown``, or the measured tables are not there.
    """
    if protocol not in _PROTOCOLS:
        raise UsageError(
            f"The protocol must be one of {', '.join(_PROTOCOLS)}. Got '{protocol}' instead.", code="protocol.unknown"
        )
    from dippm.evaluation.kernels import evaluate_kernels

    if retrain:
        from dippm.training.kernels import train_network

        return evaluate_kernels(seed=seed, train=train_network)
    return evaluate_kernels(seed=seed)
