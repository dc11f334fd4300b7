"""The files of an exploration whose trials are made up."""

from __future__ import annotations

import csv
import json
import re
from itertools import combinations
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'dippm[explore]'")

from dippm.api.exploration.exploration import Exploration
from dippm.api.exploration.files import write_files
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.space import Space
from dippm.api.exploration.trials import Outcome, Trial
from dippm.errors import UsageError

LATENCY, ENERGY, MEMORY = (Objective(metric=name) for name in ("latency_ms", "energy_j", "memory_mb"))
PARAMS, SCORE = (Objective(metric=name, is_maximised=True) for name in ("params", "score"))
LIMITS = (Limit(metric="memory_mb", bound=5000.0),)
SPACE = Space.of(
    {"kind": ["plain", "deep"], "depth": {"from": 1, "to": 9, "if": {"kind": "deep"}}}, lambda _: "timm:resnet18"
)
PLAN = {
    "schema": 2, "space": "0f08", "objectives": ["latency_ms:min", "params:max"], "limits": ["memory_mb<=5000"],
    "device": "A100-SXM4-40GB", "batch": 8, "conditions": {"precision": "amp", "mode": "inference"},
    "sampler": "random", "seed": 3, "versions": {"dippm": "9.8"},
}  # fmt: skip


def figures(latency: float, params: int, memory: float = 1500.0, **changes: object) -> Outcome:
    given = {
        "values": {"latency_ms": latency, "energy_j": 2.0 * latency, "memory_mb": memory, "params": params,
                   "score": 1.0 / params},
        "intervals": {"latency_ms": (latency / 2, 2 * latency), "energy_j": (latency, 4 * latency),
                      "memory_mb": (memory - 1, memory + 1)},
        **changes,
    }  # fmt: skip
    return Outcome(**given)  # type: ignore[arg-type]


TRIALS = tuple(
    Trial.of(number, choices, outcome, LIMITS)  # type: ignore[arg-type]
    for number, (choices, outcome) in enumerate(
        [
            ({"kind": "deep", "depth": 9}, figures(4.0, 32, mig="1g.5gb")),
            ({"kind": "plain"}, figures(3.0, 16, no_slice="too large")),
            ({"kind": "deep", "depth": 1}, figures(1.0, 64, 8000.0)),
            ({"kind": "deep", "depth": 2}, Outcome(error_code="space.build_failed", error='"x", then\na second line')),
        ]
    )
)


def explored(trials: tuple[Trial, ...] = TRIALS, objectives: tuple[Objective, ...] = (LATENCY, PARAMS)) -> Exploration:
    return Exploration.of(
        trials, space=SPACE, objectives=objectives, limits=LIMITS, plan=PLAN, is_exhausted=False
    )  # fmt: skip


def panels(plot: Path) -> int:
    return len(re.findall(r'<g id="axes_\d+">', plot.read_text()))


def test_the_files_are_told_and_there(tmp_path: Path) -> None:
    found = write_files(explored(), tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found.files] == [
        "front.md", "front.html", "front.json", "front/trade_offs.svg", "trials.csv",
    ]  # fmt: skip
    assert all(path.is_file() for path in found.files)
    assert (found.trials, found.front) == (TRIALS, (TRIALS[1], TRIALS[0]))


def test_the_table_of_all_trials(tmp_path: Path) -> None:
    write_files(explored(), tmp_path)
    with (tmp_path / "trials.csv").open(newline="") as lines:
        header, *rows = csv.reader(lines)
    assert header == [
        "trial", "status", "front", "kind", "depth", "latency_ms", "energy_j", "memory_mb", "params", "score",
        "latency_ms_low", "latency_ms_high", "energy_j_low", "energy_j_high", "memory_mb_low", "memory_mb_high",
        "mig", "error_code", "error",
    ]  # fmt: skip
    assert rows == [
        ["0", "ok", "2", "deep", "9", "4.0", "8.0", "1500.0", "32", "0.03125",
         "2.0", "8.0", "4.0", "16.0", "1499.0", "1501.0", "1g.5gb", "", ""],
        ["1", "ok", "1", "plain", "", "3.0", "6.0", "1500.0", "16", "0.0625",
         "1.5", "6.0", "3.0", "12.0", "1499.0", "1501.0", "", "", ""],
        ["2", "infeasible", "", "deep", "1", "1.0", "2.0", "8000.0", "64", "0.015625",
         "0.5", "2.0", "1.0", "4.0", "7999.0", "8001.0", "", "", ""],
        ["3", "failed", "", "deep", "2", *[""] * 12, "space.build_failed", '"x", then\na second line'],
    ]  # fmt: skip


def test_a_metric_without_an_interval_has_empty_ends(tmp_path: Path) -> None:
    bare = Trial.of(0, {"kind": "plain"}, figures(4.0, 32, intervals={"latency_ms": (3.0, 5.0)}), LIMITS)
    write_files(explored((bare,)), tmp_path)
    (row,) = csv.DictReader((tmp_path / "trials.csv").read_text().splitlines())
    assert (row["latency_ms_low"], row["latency_ms_high"]) == ("3.0", "5.0")
    assert (row["energy_j"], row["energy_j_low"], row["energy_j_high"]) == ("8.0", "", "")


def test_the_front_as_data_is_what_the_exploration_says(tmp_path: Path) -> None:
    found = write_files(explored(), tmp_path)
    values = json.loads((tmp_path / "front.json").read_text())
    assert values == {"schema": 1, **json.loads(json.dumps(found.to_dict()))}
    assert [point["trial"] for point in values["front"]] == [1, 0]


def test_the_page_says_what_was_asked_and_found(tmp_path: Path) -> None:
    write_files(explored(), tmp_path)
    page = (tmp_path / "front.md").read_text()
    assert page.startswith("# Trade-offs on A100-SXM4-40GB\n")
    assert (
        "4 models of a space made in Python, predicted on A100-SXM4-40GB at batch 8, amp, inference; objectives: "
        "latency_ms:min, params:max. Sampler random, seed 3, dippm 9.8. Limits, kept to at the bad end of the "
        "interval: memory_mb<=5000."
    ) in page
    assert "2 of them are on the front" in page
    assert "1 of 4 trials failed with space.build_failed" in page
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    # Twice as slow is within the intervals of both, and more parameters are more: the slower point is a rival.
    assert rows[0] == ["", "latency, ms", "parameters", "memory, MiB", "MIG", "rivals", "kind", "depth"]
    assert rows[2:] == [
        ["1", "3 [1.5 – 6]", "16", "1,500 [1,499 – 1,501]", "too large", "2", "plain", "-"],
        ["2", "4 [2 – 8]", "32", "1,500 [1,499 – 1,501]", "1g.5gb", "-", "deep", "9"],
    ]
    assert (tmp_path / "front.html").read_text().count("<tr>") == 3


def test_figures_without_an_interval(tmp_path: Path) -> None:
    values = {"latency_ms": 4.0, "memory_mb": 1500.0, "score": 1234.56, "params": 12_345_678}
    bare = Trial.of(0, {"kind": "plain"}, Outcome(values=values), ())
    objectives, plan = (SCORE, PARAMS), {**PLAN, "limits": []}
    found = Exploration.of([bare], space=SPACE, objectives=objectives, limits=(), plan=plan, is_exhausted=False)
    write_files(found, tmp_path)
    page = (tmp_path / "front.md").read_text()
    assert "| 1 | 1235 | 12,345,678 | 4 | 1500 | unknown | - | plain | - |" in page
    assert "Limits" not in page


def test_a_figure_that_is_not_there_is_a_dash(tmp_path: Path) -> None:
    bare = Trial.of(0, {"kind": "plain"}, Outcome(values={"latency_ms": 4.0}), ())
    write_files(Exploration.of(
        [bare], space=SPACE, objectives=(LATENCY,), limits=(), plan=PLAN, is_exhausted=False
    ), tmp_path)  # fmt: skip
    assert "| 1 | 4 | - | unknown | - | plain | - |" in (tmp_path / "front.md").read_text()


def test_without_a_front_there_is_no_plot(tmp_path: Path) -> None:
    found = write_files(explored(TRIALS[2:]), tmp_path)
    assert {path.suffix for path in found.files} == {".md", ".html", ".json", ".csv"}
    page = (tmp_path / "front.md").read_text()
    assert "No trial keeps to all limits. The nearest, trial 2," in page
    assert "trade_offs" not in page
    assert "## The front" not in page


@pytest.mark.parametrize("objectives", [(SCORE,), (LATENCY, PARAMS), (LATENCY, ENERGY, MEMORY, PARAMS, SCORE)])
def test_every_pair_of_objectives_has_a_panel(tmp_path: Path, objectives: tuple[Objective, ...]) -> None:
    write_files(explored(objectives=objectives), tmp_path)
    assert panels(tmp_path / "front" / "trade_offs.svg") == max(1, len(list(combinations(objectives, 2))))


def test_equal_explorations_give_equal_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = (write_files(explored(), tmp_path / name).files for name in ("one", "other"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").mkdir()
    with pytest.raises(UsageError, match=r"trials\.csv' cannot be written: ") as caught:
        write_files(explored(), tmp_path)
    assert caught.value.code == "explore.unwritable"
