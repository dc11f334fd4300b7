"""Peaks of resident memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.measuring.process_memory import ResidentMemory, trim_heap

STATUS = Path("/proc/self/status")


def write_status(path: Path, *, peak_kb: int, now_kb: int) -> None:
    path.write_text(f"Name:\tpython\nVmHWM:\t  {peak_kb} kB\nVmRSS:\t  {now_kb} kB\n")


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc")
def test_each_peak_is_its_own() -> None:
    memory = ResidentMemory()
    memory.reset_peak()
    if memory._peak_before is not None:
        pytest.skip("this system does not let a process reset its peak")
    before = memory.current_mb()
    assert before is not None
    block = bytearray(b"x" * (64 << 20))
    del block
    peak = memory.peak_mb()
    assert peak is not None
    assert peak > before + 60
    trim_heap()
    memory.reset_peak()
    after = memory.peak_mb()
    assert after is not None
    assert after < peak - 30


def test_a_peak_below_an_earlier_one_is_unknown(tmp_path: Path) -> None:
    status = tmp_path / "status"
    memory = ResidentMemory(status=status, clear_refs=tmp_path / "absent" / "clear_refs")
    write_status(status, peak_kb=2048, now_kb=1024)
    memory.reset_peak()
    assert memory.peak_mb() is None
    write_status(status, peak_kb=4096, now_kb=1024)
    assert memory.peak_mb() == 4
    assert memory.current_mb() == 1


def test_without_proc_there_is_the_peak_of_the_whole_life(tmp_path: Path) -> None:
    memory = ResidentMemory(status=tmp_path / "absent")
    assert memory.current_mb() is None
    peak = memory.peak_mb()
    assert peak is not None
    assert peak > 5
