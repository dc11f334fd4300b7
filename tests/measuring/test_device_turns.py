from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dippm.measuring.device_turns import DeviceTurns

_PATIENCE_S = 20.0
# Says that it is in, and leaves when its input ends.
_HOLDER = """
import sys
from pathlib import Path
from dippm.measuring.device_turns import DeviceTurns
with getattr(DeviceTurns(Path(sys.argv[1])), sys.argv[2])():
    print("in", flush=True)
    sys.stdin.read()
"""


class Holder:
    def __init__(self, folder: Path, kind: str) -> None:
        command = [sys.executable, "-c", _HOLDER, str(folder), kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_in(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "in\n"

    def is_in(self, seconds: float) -> bool:
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
    first.wait_until_in()
    second.wait_until_in()


def test_nobody_is_in_beside_one_who_measures_and_its_end_lets_the_next_in(start) -> None:
    alone = start("alone")
    alone.wait_until_in()
    others = [start("together"), start("alone")]
    assert not any(other.is_in(0.5) for other in others)
    alone.process.kill()  # however it ends
    entered = others[0] if others[0].is_in(_PATIENCE_S / 2) else others[1]
    entered.wait_until_in()


def test_who_waits_to_measure_keeps_newcomers_out(start) -> None:
    first = start("together")
    first.wait_until_in()
    alone = start("alone")
    assert not alone.is_in(1.0)  # it waits for the first, and holds the gate
    newcomer = start("together")
    assert not newcomer.is_in(1.0)
    first.leave()
    alone.wait_until_in()
    assert not newcomer.is_in(0.5)
    alone.leave()
    newcomer.wait_until_in()


def test_turns_of_one_process_follow_each_other(tmp_path: Path) -> None:
    turns = DeviceTurns(tmp_path)
    assert turns.is_shared
    began = time.monotonic()
    for _ in range(50):
        with turns.together():
            pass
        with turns.alone():
            pass
    assert time.monotonic() - began < _PATIENCE_S


def test_alone_in_the_world(tmp_path: Path) -> None:
    turns = DeviceTurns()
    assert not turns.is_shared
    with turns.together(), turns.alone(), turns.alone():
        assert not list(tmp_path.iterdir())
