"""Real processes, killed at random moments and out of room; the table at the end is always the same."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).with_name("killed_campaign.py"))
MODELS = 100


def start(store: Path, journal: Path, *, row_s: float = 0.0, limit_bytes: int = 0) -> subprocess.Popen[str]:
    arguments = [str(store), str(journal), str(MODELS), str(row_s), str(limit_bytes)]
    return subprocess.Popen(
        [sys.executable, PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rows(store: Path) -> list[tuple[str, str, int]]:
    """Key, outcome and repeat of every row, sorted."""
    connection = sqlite3.connect(store)
    try:
        return sorted(connection.execute("SELECT key, outcome, repeat FROM labels"))
    finally:
        connection.close()


def finish(store: Path, journal: Path) -> str:
    process = start(store, journal)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


def journal_rows(journal: Path) -> int:
    return len(journal.read_text(encoding="utf-8").splitlines()) if journal.exists() else 0


@pytest.mark.parametrize("times", [5, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.exhaustive])])
def test_killed_at_random_moments_it_ends_with_the_same_table(times: int, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed.sqlite", tmp_path / "disturbed.sqlite"
    finish(undisturbed, tmp_path / "undisturbed.txt")
    expected = rows(undisturbed)
    assert len(expected) > 3 * MODELS
    assert {outcome for _, outcome, _ in expected} == {"ok", "failed", "out-of-memory"}
    assert any(repeat for _, _, repeat in expected)

    journal = tmp_path / "disturbed.txt"
    moments = random.Random(times)  # noqa: S311 - moments, not secrets
    kills = 0
    for _ in range(times):
        process = start(disturbed, journal, row_s=0.015)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        process.stderr.close()
        # Of all that the device has measured, each kill has lost one row at most.
        assert journal_rows(journal) - len(rows(disturbed)) <= kills
    assert kills == times, "it was done before it was killed: the test needs more models"
    assert 0 < len(rows(disturbed)) < len(expected)

    last = finish(disturbed, journal)
    assert last.startswith("finished")
    assert rows(disturbed) == expected
    assert journal_rows(journal) - len(expected) <= kills
    # One more run finds nothing to do.
    assert finish(disturbed, journal).split()[:2] == ["finished", "0"]


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(store, journal, limit_bytes=120_000)
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == "ready\n"
    assert re.search(r"dippm.errors.*(full|written|disk)", err), err
    kept = rows(store)
    assert 0 < len(kept) == journal_rows(journal) - 1
    finish(store, journal)
    after = rows(store)
    assert set(kept) < set(after)
    undisturbed = tmp_path / "undisturbed.sqlite"
    finish(undisturbed, tmp_path / "undisturbed.txt")
    assert after == rows(undisturbed)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_it_well(number: signal.Signals, reason: str, tmp_path: Path) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(store, journal, row_s=0.02)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while journal_rows(journal) < 5:
        time.sleep(0.01)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    stopped, measured, _ = out.split()
    assert (stopped, int(measured)) == (reason, len(rows(store)))
