"""The memory that a device must offer for a prediction to come true."""

from __future__ import annotations

from dippm.errors import UnsupportedError
from dippm.predictors.prediction import Prediction, format_interval

__all__ = ["needed_of", "rows_of_need"]


def needed_of(prediction: Prediction) -> tuple[float, float]:
    """Lower and upper end of what a device must offer, MiB.

    Raises:
        UnsupportedError: ``prediction.no_interval`` where the predictor gives none.
    """
    interval = prediction.must_have_mb
    if interval is None:
        lacking = "memory, as its labels had none" if prediction.memory_mb is None else "interval of the memory"
        raise UnsupportedError(
            f"Whether '{prediction.model.source}' fits at batch {prediction.batch} is not known: the predictor gives "
            f"no {lacking}. {' '.join(prediction.warnings)}".rstrip(),
            code="prediction.no_interval",
            cure="Leave the predictor out, or train it on labels with memory of models and batches like these.",
        )
    return interval


def rows_of_need(prediction: Prediction) -> list[str]:
    """What is needed, as answers print it; nothing where that is all that is held."""
    needed_mb = needed_of(prediction)
    if needed_mb == prediction.intervals.get("memory_mb"):
        return []
    return [f"  needs    {format_interval(needed_mb)} MiB, and gives the rest back"]
