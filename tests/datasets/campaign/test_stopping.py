"""When a campaign stops: between rows at once, in a row after it, and never in the middle of writing one."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from dippm.datasets.campaign.stopping import Stopper, StopReason, StopRequested


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_nothing_stops_without_a_reason() -> None:
    with Stopper() as stopper, stopper.waiting():
        assert stopper.reason is None
        assert stopper.remaining_s() == float("inf")


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, StopReason.INTERRUPTED), (signal.SIGTERM, StopReason.TERMINATED)]
)
def test_a_signal_breaks_off_the_wait(number: signal.Signals, reason: StopReason) -> None:
    def wait() -> None:
        with stopper.waiting():
            os.kill(os.getpid(), number)
            time.sleep(10)

    with Stopper() as stopper:
        with pytest.raises(StopRequested):
            wait()
        assert stopper.reason is reason
        with pytest.raises(StopRequested), stopper.waiting():
            pytest.fail("no further wait begins")


def test_a_signal_while_a_row_is_written_is_remembered() -> None:
    with Stopper() as stopper:
        _interrupt()
        written = True  # the stretch outside of a wait goes on
        assert (written, stopper.reason) == (True, StopReason.INTERRUPTED)
        with pytest.raises(StopRequested), stopper.waiting():
            pytest.fail("it should have stopped before")


def test_the_budget_breaks_off_the_wait() -> None:
    start = time.monotonic()
    with Stopper(start + 0.2) as stopper:
        assert 0 < stopper.remaining_s() <= 0.2
        with pytest.raises(StopRequested), stopper.waiting():
            time.sleep(10)
        assert stopper.reason is StopReason.BUDGET
    assert time.monotonic() - start < 5


def test_the_first_reason_counts() -> None:
    with Stopper(time.monotonic() - 1) as stopper:
        assert stopper.reason is StopReason.BUDGET
        _interrupt()
        assert stopper.reason is StopReason.BUDGET


def test_handlers_and_timers_end_with_it() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Stopper(time.monotonic() + 60):
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_in_another_thread_the_budget_alone_counts() -> None:
    found: list[StopReason | None] = []

    def run() -> None:
        with Stopper(time.monotonic() - 1) as stopper:
            try:
                with stopper.waiting():
                    pass
            except StopRequested:
                found.append(stopper.reason)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [StopReason.BUDGET]
