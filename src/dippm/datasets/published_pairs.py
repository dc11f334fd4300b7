"""Training steps that others have run in the eager runtime and compiled.

Times are in ``data/published/compiled_steps.csv``, peaks of memory in ``data/published/compiled_memory.csv``;
``data/published/README.md`` says where the figures come from and how they were taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dippm.costs.precision import Precision
from dippm.datasets.tables import PUBLISHED_CURE, read_records

__all__ = ["MemoryPair", "StepPair", "read_memory_pairs", "read_step_pairs"]

_TIMES, _PEAKS = "compiled_steps.csv", "compiled_memory.csv"

_records = partial(read_records, cure=PUBLISHED_CURE)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPair:
    """One model, of which the peak of the memory was measured twice on the same card.

    Args:
        source: Which table.
        model: ``timm:NAME``, ``torchvision:NAME``, or ``hf:CLASS`` of transformers with its default configuration.
        precision: Arithmetic.
        batch: Samples a step.
        sequence: Tokens a sample, None of images.
        ratio: Most bytes that tensors took in the eager step, over those of the compiled one.
    """

    source: str
    model: str
    precision: Precision
    batch: int
    sequence: int | None
    ratio: float


def read_memory_pairs(folder: Path) -> list[MemoryPair]:
    """Read the table of memory.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing`` where it is not there.
    """
    return [
        MemoryPair(
            source=record["source"],
            model=record["model"],
            precision=Precision(record["precision"]),
            batch=int(record["batch"]),
            sequence=int(record["sequence"]) if record["sequence"] else None,
            ratio=float(record["ratio"]),
        )
        for record in _records(folder / _PEAKS)
    ]


def read_step_pairs(folder: Path) -> list[StepPair]:
    """Read the table of times.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing`` where it is not there.
    """
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
        for record in _records(folder / _TIMES)
    ]
