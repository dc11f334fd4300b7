"""The process that measures, run in this one, with a bench that is made up."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
if os.name != "posix":
    pytest.skip("the worker needs POSIX", allow_module_level=True)

from dippm.errors import UnsupportedError
from dippm.measuring import bench as bench_module
from dippm.measuring import process_memory, worker_process
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.protocol import Plan
from dippm.measuring.worker_process import Ready, Refusal, Reply, Request, Setup, main

SETUP = Setup(device="cpu", plan=Plan(warmup_runs=2, timed_runs=3), memory_limit_mb=None)
SOFTWARE = SoftwareStack(framework="torch 9.8")
PARENT = 4321


@dataclass(frozen=True)
class Source:
    """Stands for a model."""

    name: str


class Unreadable:
    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


class Bench:
    """Takes a second for each sample, and breaks at a batch of 13."""

    device_name = "Processor"
    software = SOFTWARE

    def __init__(self, *words: object, **named: object) -> None:
        self.made_with = (words, named)
        self.busy_s = 0.0
        self.is_usable = True
        self.measured: list[tuple[Source, int]] = []

    def measure(self, source: Source, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for configuration in configurations:
            self.measured.append((source, configuration.batch))
            self.busy_s += configuration.batch
            self.is_usable = configuration.batch != 13
            outcome = Outcome.OK if self.is_usable else Outcome.FAILED
            yield Measurement(outcome=outcome, device=self.device_name, measured_at="", message=source.name)


class Process:
    """Runs the process's main function on what was asked before, and gives its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.bench = Bench()
        self.limits_mb: list[float] = []
        self.kept: list[bool] = []
        self.parents: list[int] = []
        self.score = folder / "oom_score_adj"
        self.score.touch()
        monkeypatch.setattr(bench_module, "Bench", self.make_bench)
        monkeypatch.setattr(process_memory, "limit_address_space", self.limits_mb.append)
        monkeypatch.setattr(process_memory, "keep_freed_memory", lambda: self.kept.append(True))
        monkeypatch.setattr(worker_process, "_die_with", self.parents.append)
        monkeypatch.setattr(worker_process, "_OOM_SCORE", self.score)

    def make_bench(self, *words: object, **named: object) -> Bench:
        self.bench = Bench(*words, **named)
        return self.bench

    def answer(self, *messages: object) -> list[Any]:
        """All answers, to their end."""
        (requests_in, requests_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        with Connection(requests_out, readable=False) as requests:
            for message in messages:
                requests.send(message)
        answers = []
        with Connection(replies_in, writable=False) as replies:
            main(requests_in, replies_out, PARENT)
            while True:
                try:
                    answers.append(replies.recv())
                except EOFError:
                    return answers


@pytest.fixture(name="process")
def _process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Process:
    return Process(monkeypatch, tmp_path)


def ask(name: str, *batches: int) -> Request:
    return Request(source=pickle.dumps(Source(name)), configurations=[Configuration(batch=batch) for batch in batches])


def test_every_configuration_is_answered_in_order_with_the_time_that_it_took(process: Process) -> None:
    ready, *replies = process.answer(SETUP, ask("one", 4, 1), ask("two", 8))
    assert ready == Ready(device_name="Processor", software=SOFTWARE)
    assert [(reply.measurement.message, reply.busy_s, reply.is_last) for reply in replies] == [
        ("one", 4.0, False),
        ("one", 1.0, False),
        ("two", 8.0, False),
    ]
    assert process.bench.measured == [(Source("one"), 4), (Source("one"), 1), (Source("two"), 8)]


def test_the_bench_is_the_one_asked_for_and_has_the_process_to_itself(process: Process) -> None:
    process.answer(SETUP)
    assert process.bench.made_with == (("cpu", SETUP.plan), {"owns_process": True})


@pytest.mark.parametrize(("device", "kept"), [("cpu", [True]), ("cuda", []), ("cuda:1", [])])
def test_freed_memory_is_kept_where_the_processor_is_measured(process: Process, device: str, kept: list[bool]) -> None:
    process.answer(replace(SETUP, device=device))
    assert process.kept == kept


def test_it_ends_where_no_more_is_asked(process: Process) -> None:
    assert process.answer(SETUP) == [Ready(device_name="Processor", software=SOFTWARE)]


def test_a_device_that_is_not_to_be_had_is_the_only_answer(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Bench:
        raise UnsupportedError("There is no such device.", code="device.unavailable")

    monkeypatch.setattr(bench_module, "Bench", refuse)
    refusal = Refusal(code="device.unavailable", message="There is no such device.")
    assert process.answer(SETUP, ask("one", 1)) == [refusal]


def test_a_source_that_cannot_be_made_again_fails_in_each_configuration_and_the_next_is_measured(
    process: Process,
) -> None:
    broken = Request(source=pickle.dumps(Unreadable()), configurations=[Configuration(batch=batch) for batch in (1, 2)])
    _, *replies = process.answer(SETUP, broken, ask("good", 3))
    assert [reply.measurement.outcome for reply in replies] == [Outcome.FAILED, Outcome.FAILED, Outcome.OK]
    assert [reply.busy_s for reply in replies] == [0.0, 0.0, 3.0]
    assert not any(reply.is_last for reply in replies)
    failed = replies[0].measurement
    assert "in another process: ValueError: invalid literal" in failed.message
    assert (failed.device, failed.software) == ("Processor", SOFTWARE)


def test_after_an_error_that_cuda_does_not_recover_from_it_says_so_and_ends(process: Process) -> None:
    _, *replies = process.answer(SETUP, ask("one", 2, 13, 4), ask("two", 8))
    assert [(reply.measurement.outcome, reply.is_last) for reply in replies] == [
        (Outcome.OK, False),
        (Outcome.FAILED, True),
    ]
    assert [batch for _, batch in process.bench.measured] == [2, 13]


@pytest.mark.parametrize(("limit_mb", "limits_mb"), [(None, []), (400.0, [400.0])])
def test_memory_is_limited_where_that_is_asked_for(
    process: Process, limit_mb: float | None, limits_mb: list[float]
) -> None:
    process.answer(Setup(device="cpu", plan=SETUP.plan, memory_limit_mb=limit_mb))
    assert process.limits_mb == limits_mb


def test_it_watches_its_parent_and_is_the_first_to_be_killed(process: Process) -> None:
    process.answer(SETUP)
    assert process.parents == [PARENT]
    assert process.score.read_text() == "1000"  # the most that Linux takes, see proc(5)


def test_a_system_without_such_a_score_is_none_the_worse(
    process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_process, "_OOM_SCORE", tmp_path / "no" / "such" / "file")
    assert len(process.answer(SETUP, ask("one", 1))) == 2


def test_it_ends_quietly_where_nobody_listens_any_more(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    (requests_in, requests_out), (replies_in, replies_out) = os.pipe(), os.pipe()
    listener = Connection(replies_in, writable=False)

    class Left(Bench):
        def measure(self, source: Source, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
            listener.close()
            return super().measure(source, configurations)

    monkeypatch.setattr(bench_module, "Bench", Left)
    with Connection(requests_out, readable=False) as requests:
        for message in (SETUP, ask("one", 1, 2)):
            requests.send(message)
        main(requests_in, replies_out, PARENT)
    assert listener.closed


def test_it_dies_with_its_parent_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever loses its parent gets another one.
    parents = [PARENT, PARENT, 1]
    statuses: list[int] = []
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    worker_process._die_with(PARENT)
    assert (parents, statuses) == ([], [1])


@pytest.mark.parametrize(
    "message",
    [
        SETUP,
        Ready(device_name="Processor", software=SOFTWARE),
        Refusal(code="device.unavailable", message="no"),
        Request(source=b"x", configurations=[Configuration(batch=2)]),
        Reply(
            measurement=Measurement(outcome=Outcome.OK, device="x", measured_at=""), busy_s=1.0, is_last=True
        ),
    ],
)  # fmt: skip
def test_messages_travel(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
