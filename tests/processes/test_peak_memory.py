from __future__ import annotations

import resource
import sys
from types import SimpleNamespace

import pytest

from dippm.processes.peak_memory import peak_memory_mb


@pytest.mark.parametrize(("system", "told"), [("linux", 3 * 2**10), ("darwin", 3 * 2**20)])
def test_the_peak_is_in_mib_whatever_the_system_counts_in(
    monkeypatch: pytest.MonkeyPatch, system: str, told: int
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda _who: SimpleNamespace(ru_maxrss=told))
    assert peak_memory_mb() == 3.0


def test_where_the_system_does_not_say_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory_mb() is None


def test_this_process_holds_something() -> None:
    peak = peak_memory_mb()
    assert peak is not None
    assert 5 < peak < 2**20
