"""What is kept while an exploration runs."""

from __future__ import annotations

import json
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
    with pytest.raises(UsageError, match=r"an unfinished .* --resume \(in Python resume=True\)\.") as caught:
        Journal(tmp_path, {"seed": 1}, resume=False)
    assert caught.value.code == "explore.unfinished"
    (tmp_path / "front.json").write_text("{}")
    with pytest.raises(UsageError, match=r"a finished exploration .* --resume .* and more trials\.") as caught:
        Journal(tmp_path, {"seed": 1}, resume=False)
    assert caught.value.code == "explore.finished"
    with pytest.raises(UsageError, match="its seed is 1, and now it is 2") as caught:
        Journal(tmp_path, {"seed": 2}, resume=True)
    assert caught.value.code == "explore.other_plan"


def test_a_foreign_plan_is_an_error(tmp_path: Path) -> None:
    Journal(tmp_path, {}, resume=False).__exit__(None, None, None)
    (tmp_path / "plan.json").write_text("[1]\n")
    with pytest.raises(DippmError) as caught:
        Journal(tmp_path, {}, resume=True)
    assert caught.value.code == "explore.damaged"


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"",
        b'{"point": "b", "values": {"latency_ms": ',
        b'{"point": "b", "values": {"latency_ms": "x"}, "intervals": {}, "mig": "", "warnings": []}',
        b"\xff\x00",
    ],
)
def test_a_damaged_line_in_the_middle_is_left_out_and_told(tmp_path: Path, line: bytes) -> None:
    with Journal(tmp_path, {}, resume=False) as journal:
        for key in "abc":
            journal.keep(key, FINE)
        assert journal.notes == ()
    lines = tmp_path / "journal.jsonl"
    first, _, third = lines.read_bytes().splitlines()
    lines.write_bytes(b"\n".join([first, line, third, b""]))
    with Journal(tmp_path, {}, resume=True) as again:
        assert set(again.known) == {"a", "c"}
        assert again.notes == ("Lines of 'journal.jsonl' that are damaged and were left out: 1.",)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Journal(tmp_path, {}, resume=False) as journal:
        journal.keep("a", FINE)
        half = '{"point": "b", "val'
        with (tmp_path / "journal.jsonl").open("a") as lines:
            lines.write(half)
        for resume in (False, True):
            with pytest.raises(UsageError) as caught:
                Journal(tmp_path, {}, resume=resume)
            assert caught.value.code == "explore.running"
        # What the other run was writing is still there.
        assert (tmp_path / "journal.jsonl").read_text().endswith(half)
    with pytest.raises(UsageError):
        Journal(tmp_path, {"seed": 1}, resume=True)
    with Journal(tmp_path, {}, resume=True) as again:
        assert set(again.known) == {"a"}


def test_a_part_of_the_plan_that_differs_is_named(tmp_path: Path) -> None:
    Journal(tmp_path, {"versions": {"torch": "1", "numpy": "2"}}, resume=False).__exit__(None, None, None)
    with pytest.raises(UsageError, match=r"its versions\.kernels is None, and now it is 'b'"):
        Journal(tmp_path, {"versions": {"torch": "1", "numpy": "2", "kernels": "b"}}, resume=True)


def test_what_differs_is_told_in_words(tmp_path: Path) -> None:
    before = {"space": "0f08", "device_sha256": "a1", "trials": 6}
    Journal(tmp_path, before, resume=False).__exit__(None, None, None)
    for change, words in (
        ({"space": "11aa"}, r"another: the file 'cells\.py' has changed since\."),
        ({"device_sha256": "b2"}, r"another: the figures of its device have changed since\."),
        ({"trials": 4}, r"another: it has 6 trials, and now 4 are asked for\."),
        ({"trials": 9, "seed": 2}, r"another: its seed is None, and now it is 2\."),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            Journal(tmp_path, {**before, **change}, resume=True, space_file=Path("cells.py"))
        assert caught.value.code == "explore.other_plan"
    with Journal(tmp_path, {**before, "trials": 9}, resume=True):
        assert json.loads((tmp_path / "plan.json").read_text())["trials"] == 9


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"such as 'thesis\.txt'") as caught:
            Journal(tmp_path, {}, resume=resume)
        assert caught.value.code == "explore.foreign_folder"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_whose_run_was_stopped_at_once_is_none_of_others(tmp_path: Path) -> None:
    for name in ("lock", "plan.json.part", ".gitignore"):
        (tmp_path / name).write_text("")
    with Journal(tmp_path, {}, resume=False) as journal:
        assert journal.known == {}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        Journal(tmp_path / "file" / "folder", {}, resume=False)
    assert caught.value.code == "explore.unwritable"
