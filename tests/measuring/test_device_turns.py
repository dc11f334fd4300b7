from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.measuring.device_turns import DeviceTurns

_PATIENCE_S = 20.0
# Says how far it is, and ends its turn when its input ends.
_HOLDER = """
import sys
from pathlib import Path
from dippm.measuring.device_turns import DeviceTurns
with DeviceTurns(Path(sys.argv[1])) as turns, turns.turn():
    if sys.argv[2] == "alone":
        print("begun", flush=True)
        sys.stdin.readline()
        turns.be_alone()
        turns.be_alone()  # and stays so
    print("in", flush=True)
    sys.stdin.read()
"""


class Holder:
    def __init__(self, folder: Path, kind: str) -> None:
        command = [sys.executable, "-c", _HOLDER, str(folder), kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def wait_until(self, state: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{state}\n".encode()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def has_news(self, seconds: float) -> bool:
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def leave(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(_PATIENCE_S)


@pytest.fixture(name="start")
def _start(tmp_path: Path):
    started: list[Holder] = []

    def start(kind: str) -> Holder:
        started.append(Holder(tmp_path / "turns", kind))
        return started[-1]

    yield start
    for holder in started:
        holder.process.kill()
        holder.leave()


def test_any_number_is_in_together(start) -> None:
    first, second = start("together"), start("together")
    first.wait_until("in")
    second.wait_until("in")


def test_nobody_is_in_beside_one_who_is_alone_and_its_end_lets_the_next_in(start) -> None:
    alone = start("alone")
    alone.wait_until("begun")
    alone.go_on()
    alone.wait_until("in")
    others = [start("together"), start("together")]
    assert not any(other.has_news(0.5) for other in others)
    alone.process.kill()  # however it ends
    for other in others:
        other.wait_until("in")


def test_who_waits_to_be_alone_keeps_newcomers_out(start) -> None:
    first = start("together")
    first.wait_until("in")
    alone = start("alone")
    alone.wait_until("begun")
    alone.go_on()
    assert not alone.has_news(0.5)  # it waits for the first, and holds the gate
    newcomer = start("together")
    assert not newcomer.has_news(1.0)
    first.leave()
    alone.wait_until("in")
    assert not newcomer.has_news(0.5)
    alone.leave()
    newcomer.wait_until("in")


def test_two_who_want_to_be_alone_follow_each_other(start) -> None:
    both = [start("alone"), start("alone")]
    for each in both:
        each.wait_until("begun")
    for each in both:
        each.go_on()
    ready = select.select([each.process.stdout for each in both], [], [], _PATIENCE_S)[0]
    first, second = both if both[0].process.stdout in ready else both[::-1]
    first.wait_until("in")
    assert not second.has_news(0.5)
    first.leave()
    second.wait_until("in")


def test_a_turn_that_fails_is_over(tmp_path: Path, start) -> None:
    with DeviceTurns(tmp_path / "turns") as turns:
        with pytest.raises(RuntimeError), turns.turn():
            turns.be_alone()
            raise RuntimeError
        start("together").wait_until("in")
