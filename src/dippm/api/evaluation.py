"""How far predictions are from measurements: the protocols behind ``dippm evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.evaluation.kernels import KernelReport
    from dippm.evaluation.whole_models import WholeModelReport

__all__ = ["PROTOCOLS", "evaluate"]

PROTOCOLS = ("kernels", "whole-models")


def evaluate(protocol: str, *, seed: int = 0, retrain: bool = False) -> KernelReport | WholeModelReport:
    """Run an evaluation protocol.

    Args:
        protocol: ``"kernels"``: single operators on shapes, and on devices, that training left out.
            ``"whole-models"``: published latencies of whole models on which nothing was fitted.
        seed: Seed of the split of the kernels.
        retrain: Train again for each device left out, instead of showing the errors stored with the artefact.

    Raises:
        UsageError: ``protocol.unknown``, or the measured tables are not there.
        MissingExtraError: A package that the protocol needs is not installed.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(
            f"The protocol must be one of {', '.join(PROTOCOLS)}. Got '{protocol}' instead.",
            code="protocol.unknown",
            cure="The protocol of the DIPPM paper, which needs labels, is dippm.evaluate_dippm.",
        )
    if protocol == "whole-models":
        from dippm.evaluation.whole_models import evaluate_whole_models

        return evaluate_whole_models()
    from dippm.evaluation.kernels import evaluate_kernels

    if retrain:
        from dippm.training.kernels import train_network

        return evaluate_kernels(seed=seed, train=train_network)
    return evaluate_kernels(seed=seed)
