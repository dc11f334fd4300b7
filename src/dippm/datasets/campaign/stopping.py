"""How a campaign is stopped: by a signal, or by the end of its budget."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopReason", "StopRequested", "Stopper"]


class StopReason(StrEnum):
    """Why a campaign ended."""

    FINISHED = "finished"
    BUDGET = "budget spent"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    FAILED = "failed"


_SIGNALS = {signal.SIGINT: StopReason.INTERRUPTED, signal.SIGTERM: StopReason.TERMINATED}


class StopRequested(Exception):  # noqa: N818 - not an error: the way out of a blocking call
    """The campaign is to end now; what is under way is dropped."""


class Stopper:
    """Raises :class:`StopRequested` while the campaign waits for the device, and at no other place.

    A signal that comes while a row is being written is remembered until the row is written. Signals reach a process's
    main thread alone; in another thread only the budget ends a campaign, between two configurations.

    Args:
        deadline_s: When the budget ends, on the clock of :func:`time.monotonic`; None for no budget.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._reason: StopReason | None = None
        self._is_waiting = False
        self._previous: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def reason(self) -> StopReason | None:
        """Why to stop, None while there is no reason."""
        if self._reason is None and self.remaining_s() <= 0:
            self._reason = StopReason.BUDGET
        return self._reason

    def remaining_s(self) -> float:
        """Seconds until the budget is spent; infinite without one."""
        return float("inf") if self._deadline_s is None else self._deadline_s - time.monotonic()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A stretch that a stop breaks off.

        Raises:
            StopRequested: At once where a stop was asked for before.
        """
        self._is_waiting = True
        try:
            if self.reason is not None:
                raise StopRequested
            yield
        finally:
            self._is_waiting = False

    def __enter__(self) -> Stopper:
        main = threading.main_thread()
        if threading.current_thread() is main:
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
            if self._deadline_s is not None:
                self._timer = threading.Timer(max(self.remaining_s(), 0.0), self._on_deadline, (main.ident,))
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            # Its signal must find the handler below, not the process's own, which would end the process.
            self._timer.cancel()
            self._timer.join()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.reason is None:
            self._reason = _SIGNALS[signal.Signals(number)]
        if self._is_waiting:
            self._is_waiting = False
            raise StopRequested

    def _on_deadline(self, main_thread: int) -> None:
        self._reason = self._reason or StopReason.BUDGET
        # Wakes the main thread out of whatever call it is blocked in.
        signal.pthread_kill(main_thread, signal.SIGTERM)
