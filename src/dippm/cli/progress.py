"""Progress on stderr: a bar on a terminal, a line now and then elsewhere. Stdout stays for results."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, ClassVar

from dippm.cli.output import make_printable, print_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from dippm.api import CampaignProgress

__all__ = ["CampaignLines", "CountBar", "show_conversions", "show_trainings"]

_FIRST_LINE_S = 2.0
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
    """So many of so many, from the start: a bar on a terminal at once, elsewhere a line after two seconds.

    One bar is shown at a time. One that is made while another is shown waits for its own :meth:`begin` or :meth:`show`,
    which closes the other.

    Args:
        what: What is counted, in the plural.
        remark: What is under way before anything is counted, short.
    """

    _shown: ClassVar[CountBar | None] = None

    def __init__(self, what: str, remark: str = "starting") -> None:
        self._what = what
        self._bar: tuple[Bar, TaskID] | None = None
        self._first_line: Timer | None = None
        self._line = ""
        self._is_counting = False
        self._next_line_s = time.monotonic() + _LINE_EVERY_S
        self.total = 0
        if CountBar._shown is None:
            self.begin(remark)

    def begin(self, remark: str) -> None:
        """Show what is under way before anything is counted.

        Args:
            remark: What to say, short.
        """
        self._line = f"{self._what}: {remark} ..."
        self._bring_up(remark, completed=0, total=None)

    def show(self, done: int, total: int, remark: str = "") -> None:
        """Show how far it is.

        Args:
            done: How many are done.
            total: How many there are.
            remark: What else to say, short.
        """
        self.total = total
        self._line = f"{done} of {total} {self._what}" + (f", {remark}" if remark else "")
        self._bring_up(remark, completed=done, total=total)
        if not self._is_counting:
            self._is_counting = True
            # What was under way before may have had its line: what is under way now gets one of its own.
            self._plan_line()
        if self._bar is None and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            print_note(self._line)

    def close(self) -> None:
        """Leave the terminal as it was; a bar that never counted anything leaves no trace."""
        if CountBar._shown is self:
            CountBar._shown = None
        self._drop_line()
        if self._bar is not None:
            self._bar[0].live.transient = not self._is_counting
            self._bar[0].stop()
            self._bar = None

    def _bring_up(self, remark: str, *, completed: int, total: int | None) -> None:
        if CountBar._shown is not self:
            if CountBar._shown is not None:
                CountBar._shown.close()
            CountBar._shown = self
            if sys.stderr.isatty():
                self._bar = self._open(remark)
            else:
                self._plan_line()
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=completed, total=total, remark=make_printable(remark))

    def _plan_line(self) -> None:
        """Off a terminal, say what is under way in two seconds, whatever it is then."""
        self._drop_line()
        if self._bar is None:
            self._first_line = Timer(_FIRST_LINE_S, lambda: print_note(self._line))
            self._first_line.daemon = True
            self._first_line.start()

    def _drop_line(self) -> None:
        if self._first_line is not None:
            self._first_line.cancel()
            self._first_line = None

    def _open(self, remark: str) -> tuple[Bar, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn(self._what),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}", markup=False),
            console=Console(stderr=True),
            # Stdout stays for results, whatever it is while the bar is there.
            redirect_stdout=False,
        )
        task = bar.add_task(self._what, total=None, remark=make_printable(remark))
        bar.start()
        return bar, task


class CampaignLines:
    """How far a campaign is, and what it measured last or which model it builds.

    Args:
        remark: What is under way before the first model, short.
    """

    def __init__(self, remark: str = "starting") -> None:
        self._bar = CountBar("rows", remark)

    def show(self, progress: CampaignProgress) -> None:
        """Show one more row, or a model that is being built."""
        recipe, label = progress.recipe, progress.label
        if label is None:
            remark = f"building {recipe.architecture.removeprefix('zoo:')} for batch {recipe.batch}"
        else:
            latency_ms = label.measurement.latency_ms
            figure = label.measurement.outcome.value if latency_ms is None else f"{latency_ms:.3g} ms"
            remark = f"{recipe.family} batch {recipe.batch}: {figure}"
        left = "" if progress.remaining_s == float("inf") else f", {max(progress.remaining_s, 0):.0f} s left"
        self._bar.show(progress.done, progress.total, remark + left)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()


@contextmanager
def show_trainings(out: Path) -> Iterator[tuple[Callable[[int, int], None], Callable[[int, int, str], None]]]:
    """Show how many models are read, then how many trainings are done; what is called for each is handed out.

    Args:
        out: Where the trainings lie; whoever interrupts them is told that the same command goes on from there.
    """
    graphs, trainings = CountBar("models"), CountBar("trainings")

    def close() -> None:
        graphs.close()
        trainings.close()

    try:
        yield graphs.show, trainings.show
    except KeyboardInterrupt:
        close()
        print_note(f"Interrupted. The same command goes on with what lies in '{out}'.")
        raise
    finally:
        close()
