"""Measuring in a process of its own, so that nothing that a model does can hurt the one that keeps the results."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Self

from dippm.errors import UnsupportedError, UsageError
from dippm.measuring.configuration import Configuration
from dippm.measuring.device_names import parse_device
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.model_source import ModelSource
from dippm.measuring.protocol import Plan
from dippm.measuring.worker_process import Ready, Refusal, Reply, Request, Setup

__all__ = ["Worker"]

_LOG = logging.getLogger(__name__)

# sys.path travels as an argument: whatever can be imported here must be importable there before anything is unpickled.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from dippm.measuring.worker_process import main; main(*map(int, sys.argv[2:]))"
)
_BUDGET_SHARE = 1 / 3  # the rest is for building, the first call and the end of the energy window
_START_LIMIT_S = 300.0  # imports from a cold disk, and CUDA
_END_LIMIT_S = 5.0
_STDERR_TAIL_BYTES = 8192
_LONGEST_MESSAGE = 300


@dataclass(kw_only=True, slots=True)
class _Child:
    """A process that is ready."""

    process: subprocess.Popen[bytes]
    requests: Connection
    replies: Connection
    stderr: IO[bytes]
    ready: Ready


class Worker:
    """One process that measures, replaced when it dies or hangs. POSIX only.

    What models print there goes nowhere. The process ends with this one, even when this one is killed.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:INDEX"``.
        configuration_limit_s: Wall time after which a configuration is given up, the building of the model included
            where it is the first, s.
        plan: How often each model is run; None for the usual numbers, and for a slow model as many as a third of the
            limit holds.
        memory_limit_mb: Memory that models may add to the process's own, MiB; None for no limit. It limits address
            space, which CUDA reserves in plenty: for a CPU alone.

    Raises:
        UnsupportedError: ``device.unavailable``.
        UsageError: ``limit.invalid``.
        MissingExtraError: where PyTorch is not installed.
    """

    def __init__(
        self,
        device: str,
        *,
        configuration_limit_s: float,
        plan: Plan | None = None,
        memory_limit_mb: float | None = None,
    ) -> None:
        kind, _ = parse_device(device)
        if configuration_limit_s <= 0 or (memory_limit_mb is not None and (memory_limit_mb <= 0 or kind != "cpu")):
            raise UsageError(
                "Limits must be positive, and a limit of memory is for the device cpu. Got "
                f"{configuration_limit_s} s and {memory_limit_mb} MiB for {device} instead.",
                code="limit.invalid",
            )
        if plan is None:
            plan = Plan(budget_s=min(Plan().budget_s, configuration_limit_s * _BUDGET_SHARE))
        plan = replace(plan, limit_s=configuration_limit_s)
        self._setup = Setup(device=device, plan=plan, memory_limit_mb=memory_limit_mb)
        self._is_cpu = kind == "cpu"
        self._limit_s = configuration_limit_s
        self._child: _Child | None = None
        self._busy_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def busy_s(self) -> float:
        """Time that the device spent on warm-up and measured calls so far, s; without those of lost configurations."""
        return self._busy_s

    @property
    def device_name(self) -> str:
        """The device as it names itself. Starts the process."""
        return self._running().ready.device_name

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        """Measure a model in several configurations.

        Args:
            source: The model; it is built once and serves all configurations, as long as the process lives.
            configurations: How it is run, in order.

        Yields:
            One measurement for each configuration, as soon as it is there.

        Raises:
            UsageError: ``source.not_picklable``.
            UnsupportedError: ``device.unavailable`` where the process cannot be started on the device.
        """
        try:
            pickled = pickle.dumps(source)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise UsageError(
                f"The model's source cannot be sent to another process: {exc}.",
                code="source.not_picklable",
                cure="Its class must stand at the top level of a module, its fields must be picklable.",
            ) from exc
        left = list(configurations)
        is_answering = False  # whether the process still has configurations to answer
        try:
            while left:
                child = self._running()
                if not is_answering:
                    is_answering = _send(child, Request(source=pickled, configurations=left))
                reply = self._next_reply(child)
                left.pop(0)
                self._busy_s += reply.busy_s
                if reply.is_last:
                    self._kill()
                is_answering = bool(left) and not reply.is_last
                yield reply.measurement
        finally:
            if is_answering:  # the caller lost interest, or was interrupted
                self._kill()

    def close(self) -> None:
        """End the process."""
        child = self._child
        if child is None:
            return
        child.requests.close()  # it reads this as the end of its work
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(_END_LIMIT_S)
        self._kill()

    def _next_reply(self, child: _Child) -> Reply:
        started = time.perf_counter()
        with suppress(EOFError, ConnectionError):
            if child.replies.poll(self._limit_s):
                reply = child.replies.recv()
                if isinstance(reply, Reply):
                    return reply
            else:
                self._kill()
                message = f"It took more than {self._limit_s:g} s and was ended."
                return self._lost(child, Outcome.TIMED_OUT, message, seconds=time.perf_counter() - started)
        outcome, message = self._cause_of_death(child)
        self._kill()
        return self._lost(child, outcome, message, seconds=time.perf_counter() - started)

    def _cause_of_death(self, child: _Child) -> tuple[Outcome, str]:
        try:
            status = child.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return Outcome.FAILED, "The measuring process closed its pipe and did not end."
        if status == -signal.SIGKILL and self._is_cpu:
            return Outcome.OUT_OF_MEMORY, "The system killed the measuring process, as it does where memory runs out."
        how = f"by {_signal_name(-status)}" if status < 0 else f"with status {status}"
        return Outcome.FAILED, f"The measuring process ended {how}: {_last_words(child.stderr)}"[:_LONGEST_MESSAGE]

    def _lost(self, child: _Child, outcome: Outcome, message: str, *, seconds: float) -> Reply:
        measurement = Measurement(
            outcome=outcome,
            message=message,
            device=child.ready.device_name,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            duration_s=seconds,
            software=child.ready.software,
        )
        return Reply(measurement=measurement, busy_s=0.0, is_last=True)

    def _running(self) -> _Child:
        if self._child is None:
            self._child = self._start()
        return self._child

    def _start(self) -> _Child:
        requests_in, requests_out = os.pipe()
        replies_in, replies_out = os.pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        requests, replies = Connection(requests_out, readable=False), Connection(replies_in, writable=False)
        try:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", _START, json.dumps(sys.path)]
                + [str(number) for number in (requests_in, replies_out, os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(requests_in, replies_out),
            )
        finally:
            os.close(requests_in)
            os.close(replies_out)
        answer: object = None
        with suppress(EOFError, ConnectionError):
            requests.send(self._setup)
            if replies.poll(_START_LIMIT_S):
                answer = replies.recv()
        if isinstance(answer, Ready):
            return _Child(process=process, requests=requests, replies=replies, stderr=stderr, ready=answer)
        _end(process)
        words = _last_words(stderr)
        for stream in (requests, replies, stderr):
            stream.close()
        if isinstance(answer, Refusal):
            raise UnsupportedError(answer.message, code=answer.code)
        raise UnsupportedError(
            f"The process that measures on '{self._setup.device}' did not start: {words}", code="device.unavailable"
        )

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        _end(child.process)
        for stream in (child.requests, child.replies, child.stderr):
            stream.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process; where it hangs in a driver, which no signal ends, leave it there."""
    process.kill()
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        _LOG.warning("The measuring process %d was killed and does not end.", process.pid)


def _send(child: _Child, request: Request) -> bool:
    """Send a request; where the process has just died, its pipe for replies will say so."""
    with suppress(BrokenPipeError):
        child.requests.send(request)
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(stderr: IO[bytes]) -> str:
    """What a process wrote last: the interpreter's account of its crash where there is one, else the last line."""
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_TAIL_BYTES))
    lines = [line.strip() for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines or ["it wrote nothing"])[-1]
