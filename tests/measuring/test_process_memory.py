"""Peaks of resident memory."""

from __future__ import annotations

import platform
import subprocess
import sys
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


# Pages that are new to the process in five rounds of four blocks of 16 MiB, after a first round.
_ROUNDS = """
import ctypes, resource, sys
from dippm.measuring.process_memory import KEPT, describe_allocator, keep_freed_memory
assert describe_allocator() == ""
if sys.argv[1] == "kept":
    keep_freed_memory()
    assert describe_allocator() == KEPT
library = ctypes.CDLL(None)
library.prctl(41, 1, 0, 0, 0)  # no huge pages, which come many at a time
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
def work():
    blocks = [library.malloc(16 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 16 << 20)
    for block in reversed(blocks):
        library.free(block)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("how", "least_mb", "most_mb"), [("kept", 0, 4), ("left alone", 160, 320)])
def test_what_a_call_frees_is_there_for_the_next(how: str, least_mb: int, most_mb: int) -> None:
    done = subprocess.run([sys.executable, "-c", _ROUNDS, how], capture_output=True, text=True, check=True)
    assert least_mb <= int(done.stdout) <= most_mb
