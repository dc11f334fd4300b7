"""How verdicts did on pairs of batches of which one fitted and the other did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dippm.placement.fit import FitVerdict

__all__ = ["FitScore", "PairVerdict", "score_verdicts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairVerdict:
    """What is said of both batches of a pair.

    Args:
        fitted: Of the batch that fitted.
        failed: Of the batch that failed.
    """

    fitted: FitVerdict
    failed: FitVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class FitScore:
    """How verdicts did on pairs; shares from 0 to 1.

    Args:
        pairs: Number of pairs; there are twice as many batches.
        right: Batches called right, of all.
        right_of_decided: Batches called right, of those that were not called unsure.
        unsure: Batches called unsure, of all.
        wrong_yes: Batches called a fit, of those that failed.
        wrong_no: Batches called no fit, of those that fitted.
    """

    pairs: int
    right: float
    right_of_decided: float
    unsure: float
    wrong_yes: float
    wrong_no: float


def score_verdicts(verdicts: Sequence[PairVerdict]) -> FitScore:
    """Count what was called right; of no pairs every share is 0."""
    fitted = [verdict.fitted for verdict in verdicts]
    failed = [verdict.failed for verdict in verdicts]
    right = fitted.count(FitVerdict.YES) + failed.count(FitVerdict.NO)
    unsure = fitted.count(FitVerdict.UNSURE) + failed.count(FitVerdict.UNSURE)
    pairs = max(len(verdicts), 1)
    return FitScore(
        pairs=len(verdicts),
        right=right / (2 * pairs),
        right_of_decided=right / max(2 * pairs - unsure, 1),
        unsure=unsure / (2 * pairs),
        wrong_yes=failed.count(FitVerdict.YES) / pairs,
        wrong_no=fitted.count(FitVerdict.NO) / pairs,
    )
