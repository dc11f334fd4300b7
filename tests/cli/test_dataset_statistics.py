"""``dippm dataset stats``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.cli import main

pytestmark = pytest.mark.usefixtures("fake_worker")


def test_statistics_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "labels.sqlite")
    assert main(["dataset", "measure", "--recipe", "cpu-small", "--store", store, "--limit", "3"]) == 0
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    capsys.readouterr()
    assert main(["dataset", "stats", store]) == 0
    text = capsys.readouterr().out
    assert "Processor, inference, fp32" in text
    assert "640" in text
    assert main(["dataset", "recipes"]) == 0
    assert "10,508" in capsys.readouterr().out
