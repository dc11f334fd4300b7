"""The process that runs models for a :class:`~dippm.measuring.worker.Worker`: it may hang, crash or be killed."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import DippmError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.protocol import Plan

if TYPE_CHECKING:
    from dippm.measuring.bench import Bench

__all__ = ["Ready", "Refusal", "Reply", "Request", "Setup", "main"]

_PARENT_CHECK_S = 0.5
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_KILL = "1000"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """First message to the process.

    Args:
        device: Device to measure on.
        plan: How often each model is run.
        memory_limit_mb: Memory that models may add to the process's own, or None.
    """

    device: str
    plan: Plan
    memory_limit_mb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Answer to :class:`Setup`."""

    device_name: str
    software: SoftwareStack


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The other answer to :class:`Setup`: the device is not to be had."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A model and its configurations.

    Args:
        source: A pickled :class:`~dippm.measuring.model_source.ModelSource`.
        configurations: What to measure, in order.
    """

    source: bytes
    configurations: Sequence[Configuration]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One configuration, measured.

    Args:
        measurement: What came out.
        busy_s: Time that the device spent on it, s.
        is_last: Whether the process ends now, because CUDA takes no further work from it.
    """

    measurement: Measurement
    busy_s: float
    is_last: bool


def main(requests_fd: int, replies_fd: int, parent_id: int) -> None:
    """Answer requests until the parent closes the pipe or dies.

    Args:
        requests_fd: Pipe to read from.
        replies_fd: Pipe to write to.
        parent_id: Process that started this one.
    """
    threading.Thread(target=_die_with, args=(parent_id,), daemon=True).start()
    # Where memory runs out the system's choice must fall on this process and not on the one that keeps the results.
    with suppress(OSError):
        _OOM_SCORE.write_text(_FIRST_TO_KILL, encoding="ascii")
    requests, replies = Connection(requests_fd, writable=False), Connection(replies_fd, readable=False)
    setup: Setup = requests.recv()
    from dippm.measuring.bench import Bench

    try:
        bench = Bench(setup.device, setup.plan, owns_process=True)
    except DippmError as exc:
        replies.send(Refusal(code=exc.code, message=str(exc)))
        return
    from dippm.measuring.process_memory import keep_freed_memory, limit_address_space

    if setup.device == "cpu":
        keep_freed_memory()
    if setup.memory_limit_mb is not None:
        limit_address_space(setup.memory_limit_mb)
    replies.send(Ready(device_name=bench.device_name, software=bench.software))
    with suppress(EOFError, BrokenPipeError):  # the parent has no more work, or is gone
        while bench.is_usable:
            _answer(requests.recv(), bench, replies)


def _answer(request: Request, bench: Bench, replies: Connection) -> None:
    from dippm.measuring.failures import describe

    try:
        source = pickle.loads(request.source)  # noqa: S301 - the parent pickled it
    except Exception as exc:  # noqa: BLE001 - unpickling runs the source's own code
        message = f"The model's source cannot be made again in another process: {describe(exc)}"
        for _ in request.configurations:
            failed = Measurement(
                outcome=Outcome.FAILED,
                message=message,
                device=bench.device_name,
                measured_at="",
                software=bench.software,
            )
            replies.send(Reply(measurement=failed, busy_s=0.0, is_last=False))
        return
    for configuration in request.configurations:
        before = bench.busy_s
        (measurement,) = bench.measure(source, (configuration,))
        replies.send(Reply(measurement=measurement, busy_s=bench.busy_s - before, is_last=not bench.is_usable))
        if not bench.is_usable:
            return


def _die_with(parent_id: int) -> None:
    """End this process when its parent is gone, whatever it is doing.

    The closing of a pipe would not tell: a process that the parent forked may hold its other end.
    """
    while os.getppid() == parent_id:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
