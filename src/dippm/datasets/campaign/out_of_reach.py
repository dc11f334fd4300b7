"""Rows that cannot end well, as other rows of their model tell."""

from __future__ import annotations

import math
from dataclasses import replace

from dippm.costs.conditions import Mode
from dippm.datasets.campaign.plan import Request, Task, series_of
from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Outcome
from dippm.measuring.protocol import FEWEST_CALLS

__all__ = ["OutOfReach"]

# A step goes through the model and back.
_PASSES_PER_STEP = 2


class OutOfReach:
    """Learns from measured rows which others would be tried in vain.

    A row needs at least the time and memory of a smaller batch of its series, and one of training at least those of
    inference. Where that did not fit, or would take longer than a row may, it is out of reach.

    Args:
        row_limit_s: Wall time after which a row is given up, s; infinite for none.
    """

    def __init__(self, row_limit_s: float) -> None:
        self._row_limit_s = row_limit_s
        # By series and batch, the time in which the fewest calls that make a row end, s; infinite where none fits.
        self._needed_s: dict[tuple[str, Request], dict[int, float]] = {}

    def note(self, label: Label) -> None:
        """Learn from a row."""
        measurement = label.measurement
        match measurement.outcome:
            case Outcome.OUT_OF_MEMORY:
                needed_s = math.inf
            case Outcome.TIMED_OUT:
                needed_s = self._row_limit_s
            case _ if measurement.latency_ms is not None:
                needed_s = FEWEST_CALLS * measurement.latency_ms / 1e3
            case _:
                return
        series = series_of(label.recipe, label.configuration)
        self._needed_s.setdefault(series, {})[label.recipe.batch] = needed_s

    def has(self, task: Task) -> bool:
        """Whether a row would be tried in vain."""
        model_key, request = task.series
        needed_s = self._least_needed_s(model_key, request, batch=task.recipe.batch)
        if request.conditions.mode is Mode.TRAINING:
            inference = replace(
                request.conditions,
                mode=Mode.INFERENCE,
                optimizer=None,
                accumulation=1,
                is_checkpointed=False,
                adapters=None,
            )
            forward_s = self._least_needed_s(model_key, replace(request, conditions=inference), batch=task.recipe.batch)
            needed_s = max(needed_s, _PASSES_PER_STEP * forward_s)
        return needed_s >= self._row_limit_s

    def _least_needed_s(self, model_key: str, request: Request, *, batch: int) -> float:
        """What batches no larger than this took, s; 0 where there was none."""
        of_batches = self._needed_s.get((model_key, request), {})
        return max((needed_s for smaller, needed_s in of_batches.items() if smaller <= batch), default=0.0)
