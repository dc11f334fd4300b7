"""Progress on stderr: a bar on a terminal, a line now and then elsewhere. Stdout stays for results."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from dippm.cli.output import make_printable, print_note

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from dippm.api import CampaignProgress

__all__ = ["CampaignLines", "CountBar", "show_conversions"]

_LINE_EVERY_S = 30.0
_CONVERSIONS = "dippm.frontends.conversion"


def show_conversions() -> None:
    """Say on stderr that a converter of another framework is at work, where it takes long enough to wonder."""
    logger = logging.getLogger(_CONVERSIONS)
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes(logging.INFO))
        logger.setLevel(logging.INFO)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO:
            print_note(record.getMessage())


class CountBar:
    """So many of so many.

    Args:
        what: What is counted, in the plural.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: tuple[Bar, TaskID] | None = None
        self._next_line_s = time.monotonic() + _LINE_EVERY_S
        self.total = 0

    def show(self, done: int, total: int, remark: str = "") -> None:
        """Show how far it is.

        Args:
            done: How many are done.
            total: How many there are.
            remark: What else to say, short.
        """
        self.total = total
        if sys.stderr.isatty():
            bar, task = self._bar or self._open()
            bar.update(task, completed=done, total=total, remark=make_printable(remark))
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            print_note(f"{done} of {total} {self._what}" + (f", {remark}" if remark else ""))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar[0].stop()

    def _open(self) -> tuple[Bar, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn(self._what),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}", markup=False),
            console=Console(stderr=True),
        )
        task = bar.add_task(self._what, total=None, remark="")
        bar.start()
        self._bar = bar, task
        return self._bar


class CampaignLines:
    """How far a campaign is, and what it measured last."""

    def __init__(self) -> None:
        self._bar = CountBar("rows")

    def show(self, progress: CampaignProgress) -> None:
        """Show one more row."""
        label = progress.label
        measurement = label.measurement
        figure = measurement.outcome.value if measurement.latency_ms is None else f"{measurement.latency_ms:.3g} ms"
        left = "" if progress.remaining_s == float("inf") else f", {max(progress.remaining_s, 0):.0f} s left"
        self._bar.show(
            progress.done, progress.total, f"{label.recipe.family} batch {label.recipe.batch}: {figure}{left}"
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()
