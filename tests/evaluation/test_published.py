"""Scores of the shipped predictor on published measurements."""

from __future__ import annotations

import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dippm.evaluation.published import PublishedReport, evaluate_published, main, render_markdown
from dippm.evaluation.published_runs import PUBLISHED_FOLDER

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER
ROWS = (
    "transformers-docs-bert,",
    "timm-results-2025,timm:resnet18",
    "transformers-docs-gpt2,",
    "irene-device2,distilbert",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of the tables."""
    for package in ("torch", "transformers", "timm"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    result = tmp_path_factory.mktemp("published")
    for path in FOLDER.glob("*.csv"):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.startswith(ROWS) and ",4,1024," not in line][:14]
        (result / path.name).write_text("\n".join([head, *kept]) + "\n", encoding="utf-8")
    for path in FOLDER.glob("*.toml"):
        shutil.copy(path, result)
    return result


@pytest.fixture(scope="module")
def report(folder: Path) -> PublishedReport:
    return evaluate_published(folder)


def test_times_and_memory_are_near_what_was_published(report: PublishedReport) -> None:
    errors = np.abs([score.error_percent for score in report.scores if score.run.has_known_clocks])
    memory = np.abs([error for score in report.scores if (error := score.memory_error_percent) is not None])
    assert len(errors) >= 8
    assert errors.mean() < 20.0
    assert len(memory) >= 6
    assert memory.mean() < 8.0


def test_the_page_names_every_row(report: PublishedReport) -> None:
    page = render_markdown(report)
    assert page.count("google-bert/bert-base-uncased") == len(
        [score for score in report.scores if "bert-base" in score.run.row.model]
    )
    assert "| GeForce RTX 5090 |" in page
    assert "nan" not in page


def test_power_and_energy_have_a_section(report: PublishedReport) -> None:
    assert len(report.power) == 9
    errors = np.abs([score.timed_error_percent for score in report.power])
    assert errors.mean() < 8.0
    page = render_markdown(report)
    assert "| irene-device2, GeForce GTX 1080 Ti | 9 | 0.76 to 0.88 |" in page
    assert "| GeForce GTX 1080 Ti | 27 |" in page


def test_what_was_left_out_is_counted(report: PublishedReport) -> None:
    page = render_markdown(PublishedReport(scores=report.scores[:1], left_out=Counter({"compiled": 2})))
    assert "| compiled | 2 |" in page
    assert "Power and energy" not in page


def test_the_command_writes_the_page(folder: Path, tmp_path: Path) -> None:
    main(["--folder", str(folder), "--report", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# Published measurements")
