"""Training steps that others have timed in the eager runtime and compiled: ``data/published/compiled_steps.csv``.

``data/published/README.md`` says where the figures come from and how they were taken.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from dippm.costs.precision import Precision
from dippm.errors import UsageError

__all__ = ["StepPair", "read_step_pairs"]

_TABLE = "compiled_steps.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPair:
    """One model, timed twice on the same card.

    Args:
        source: Which table.
        model: ``timm:NAME``, or ``hf:CLASS`` of transformers with its default configuration.
        precision: Arithmetic.
        batch: Samples a step.
        sequence: Tokens a sample, None of images.
        eager_ms: Time of an eager step, ms.
        compiled_ms: Time of a compiled one, ms.
    """

    source: str
    model: str
    precision: Precision
    batch: int
    sequence: int | None
    eager_ms: float
    compiled_ms: float

    @property
    def gain(self) -> float:
        """By what factor compiling makes the step faster."""
        return self.eager_ms / self.compiled_ms


def read_step_pairs(folder: Path) -> list[StepPair]:
    """Read the table.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing`` where it is not there.
    """
    path = folder / _TABLE
    if not path.is_file():
        raise UsageError(
            f"There is no table '{path}'.", code="data.missing", cure="Name data/published of the repository."
        )
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            StepPair(
                source=record["source"],
                model=record["model"],
                precision=Precision(record["precision"]),
                batch=int(record["batch"]),
                sequence=int(record["sequence"]) if record["sequence"] else None,
                eager_ms=float(record["eager_ms"]),
                compiled_ms=float(record["compiled_ms"]),
            )
            for record in csv.DictReader(stream)
        ]
