"""What is kept while an exploration runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.api.exploration.journal import Journal
from dippm.api.exploration.trials import Outcome
from dippm.errors import DippmError, UsageError

FINE = Outcome(values={"latency_ms": 0.1 + 0.2, "params": 3}, intervals={"latency_ms": (0.1, 0.5)}, mig="1g.5gb")
FAILED = Outcome(error_code="space.build_failed", error="too wide")


def test_outcomes_are_read_back_to_the_last_digit(tmp_path: Path) -> None:
    with Journal(tmp_path / "new", {"seed": 1}, resume=False) as journal:
        journal.keep("a", FINE)
        journal.keep("b", FAILED)
    with Journal(tmp_path / "new", {"seed": 1}, resume=True) as again:
        assert again.known == {"a": FINE, "b": FAILED}


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path, {}, resume=False) as journal:
        journal.keep("a", FINE)
        journal.keep("b", FINE)
    lines = tmp_path / "journal.jsonl"
    lines.write_bytes(lines.read_bytes()[:-9])
    with Journal(tmp_path, {}, resume=True) as again:
        assert set(again.known) == {"a"}
        again.keep("c", FINE)
    with Journal(tmp_path, {}, resume=True) as third:
        assert set(third.known) == {"a", "c"}


def test_what_is_there_is_neither_overwritten_nor_mixed(tmp_path: Path) -> None:
    Journal(tmp_path, {"seed": 1}, resume=False).__exit__(None, None, None)
    with pytest.raises(UsageError, match="already") as caught:
        Journal(tmp_path, {"seed": 1}, resume=False)
    assert caught.value.code == "explore.unfinished"
    with pytest.raises(UsageError, match="its seed is 1, and now it is 2") as caught:
        Journal(tmp_path, {"seed": 2}, resume=True)
    assert caught.value.code == "explore.other_plan"


@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl"])
def test_foreign_content_is_an_error(tmp_path: Path, name: str) -> None:
    with Journal(tmp_path, {}, resume=False) as journal:
        journal.keep("a", FINE)
    (tmp_path / name).write_text("[1]\n")
    with pytest.raises(DippmError) as caught:
        Journal(tmp_path, {}, resume=True)
    assert caught.value.code == "explore.damaged"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        Journal(tmp_path / "file" / "folder", {}, resume=False)
    assert caught.value.code == "explore.unwritable"
