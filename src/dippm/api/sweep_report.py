"""What a sweep says of itself: how far it is, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SweepFailure", "SweepProgress", "SweepReport", "SweepTally"]

_STATUS, _ERROR = "status", "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepProgress:
    """How far a sweep is.

    Args:
        models: Models that are done, those of an earlier run included.
        total: Models of the sweep.
        rows: Rows that this run made.
        errors: Those of them that are errors.
        rows_per_s: Rows of this run per second.
    """

    models: int
    total: int
    rows: int
    errors: int
    rows_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFailure:
    """What went wrong in some rows.

    Args:
        code: Stable name of the error.
        rows: How many rows have it.
        model: The first model that has it.
        error: What is said of that one.
    """

    code: str
    rows: int
    model: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepReport:
    """What came of a sweep.

    Args:
        out: The table.
        models: Models of the sweep.
        rows: Rows of the table.
        errors: Those of them that are errors.
        resumed_models: Models that an earlier run had done.
        workers: Processes that predicted; 0 where this one did, or nothing was left to do.
        seconds: Wall time of this run, s.
        failures: Errors by code, the most frequent first.
    """

    out: str
    models: int
    rows: int
    errors: int
    resumed_models: int
    workers: int
    seconds: float
    failures: tuple[SweepFailure, ...]

    def to_dict(self) -> dict[str, object]:
        """The report for JSON."""
        return {**asdict(self), "seconds": round(self.seconds, 2), "failures": [asdict(each) for each in self.failures]}

    def __str__(self) -> str:
        again = f", {self.resumed_models:,} of them by an earlier run" if self.resumed_models else ""
        lines = [
            f"{self.out}: {self.rows:,} rows of {self.models:,} models{again}, {self.errors:,} errors, "
            f"{self.seconds:.1f} s"
        ]
        lines += [f"  {each.rows:>8,} x  {each.code}: {each.model}: {each.error}" for each in self.failures]
        return "\n".join(lines)


class SweepTally:
    """Counts the rows of a table while it is written."""

    def __init__(self) -> None:
        self.rows = 0
        self.errors = 0
        self._failures: dict[str, SweepFailure] = {}

    def add(self, rows: pyarrow.Table) -> None:
        """Count some rows."""
        self.rows += len(rows)
        for row in select_errors(rows).select(["error_code", "model", "error"]).to_pylist():
            self.errors += 1
            code = row["error_code"]
            first = self._failures.get(code)
            self._failures[code] = SweepFailure(
                code=code,
                rows=1 if first is None else first.rows + 1,
                model=row["model"] if first is None else first.model,
                error=row["error"] if first is None else first.error,
            )

    @property
    def failures(self) -> tuple[SweepFailure, ...]:
        """Errors by code, the most frequent first."""
        return tuple(sorted(self._failures.values(), key=lambda each: (-each.rows, each.code)))


def select_errors(rows: pyarrow.Table) -> pyarrow.Table:
    """The rows that are errors."""
    import pyarrow.compute

    return rows.filter(pyarrow.compute.equal(rows.column(_STATUS), _ERROR))
