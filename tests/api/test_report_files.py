from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dippm.api.report_files import describe_file, find_obstacle, write_report
from dippm.errors import UsageError

PLOT = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'


def write(folder: Path, **figures: object) -> tuple[Path, ...]:
    return write_report(
        folder, "DIPPM RTX 3090, fp32", title="A title", sections=[], plots={"error": PLOT}, figures=figures
    )


def test_a_report_is_pages_figures_and_plots_under_one_name(tmp_path: Path) -> None:
    files = write(tmp_path / "made" / "here", mape=1.5)
    name = "dippm-rtx-3090-fp32"
    found = [path.relative_to(tmp_path / "made" / "here").as_posix() for path in files]
    assert found == [f"{name}.md", f"{name}.html", f"{name}.json", f"{name}/error.svg"]
    page, html, figures, plot = files
    assert page.read_text().startswith("# A title")
    assert "A title" in html.read_text()
    assert json.loads(figures.read_text()) == {"mape": 1.5}
    assert plot.read_bytes() == PLOT


def test_a_figure_that_is_none_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, mape=float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "file" / "folder")
    assert caught.value.code == "report.unwritable"
    assert str(tmp_path / "file") in str(caught.value)


def test_what_keeps_a_folder_from_being_written_to_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "new" / "folder", Path("new"), Path()):
        assert find_obstacle(folder) == ""
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        assert find_obstacle(folder) == f"'{tmp_path / 'file'}' is no folder"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert find_obstacle(tmp_path / "new") == f"'{tmp_path}' may not be written to"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_labels_are_named_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    path.write_bytes(b"content")
    assert describe_file(path) == f"labels.parquet, SHA-256 {hashlib.sha256(b'content').hexdigest()}"
    assert describe_file("postgresql://host/labels") == "labels"
