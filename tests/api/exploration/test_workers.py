"""Predictions in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dippm.api.exploration.choices import Choices
from dippm.api.exploration.space import Space, load_space
from dippm.api.exploration.trials import Outcome, Terms
from dippm.api.exploration.workers import Workers
from dippm.devices import find_device
from dippm.errors import MissingExtraError, UsageError

TERMS = Terms(device=find_device("A100"), batch=1)
POINTS: list[Choices] = [{"depth": depth, "width": 16, "kind": "none"} for depth in (1, 2, 3)]


def test_a_process_that_dies_costs_its_own_point_alone(space_file: Path) -> None:
    # The second point ends its process; the others have the outcomes that they have in this process.
    space_file.write_text(
        space_file.read_text().replace(
            'width = choices["width"]',
            'width = choices["width"]\n    if choices["depth"] == 2:\n        import os\n        os._exit(9)',
        )
    )
    space = load_space(space_file)
    found: dict[int, Outcome] = {}
    with Workers(space, TERMS, jobs=2) as workers:
        workers.predict(POINTS, found.__setitem__)
    assert found[1].error_code == "worker.died"
    alone: dict[int, Outcome] = {}
    with Workers(space, TERMS, jobs=1) as workers:
        workers.predict([POINTS[0], POINTS[2]], alone.__setitem__)
    assert [found[0], found[2]] == [alone[0], alone[1]]
    assert not alone[0].error_code


def test_jobs_that_cannot_be() -> None:
    space = Space.of({"a": [1, 2]}, lambda _: "timm:resnet18")
    for jobs in (0, 2, 2.5, True):
        with pytest.raises(UsageError) as caught:
            Workers(space, TERMS, jobs=jobs)  # type: ignore[arg-type]
        assert caught.value.code == "explore.jobs"


def test_a_space_that_changes_meanwhile_ends_the_exploration_and_does_not_run(space_file: Path) -> None:
    space = load_space(space_file)
    marker = space_file.with_name("it_ran")
    space_file.write_text(f"open({str(marker)!r}, 'w').close()\n{space_file.read_text()}")
    with Workers(space, TERMS, jobs=2) as workers, pytest.raises(UsageError) as caught:
        workers.predict(POINTS, lambda *_: None)
    assert caught.value.code == "explore.space_changed"
    assert not marker.exists()


def test_a_package_that_is_missing_ends_the_exploration(space_file: Path) -> None:
    missing = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'
    space_file.write_text(space_file.read_text().replace('raise ValueError("too wide")', missing))
    space_file.write_text(space_file.read_text().replace("10**9", "1"))
    with Workers(load_space(space_file), TERMS, jobs=2) as workers, pytest.raises(MissingExtraError) as caught:
        workers.predict(POINTS, lambda *_: None)
    assert (caught.value.package, caught.value.extra, caught.value.code) == ("torch", "torch", "extra.missing")
    assert "dippm[torch]" in str(caught.value)


def test_the_line_of_a_fault_comes_from_another_process(space_file: Path) -> None:
    space_file.write_text(space_file.read_text().replace("10**9", "1"))
    line = space_file.read_text().splitlines().index('        raise ValueError("too wide")') + 1
    found: dict[int, Outcome] = {}
    with Workers(load_space(space_file), TERMS, jobs=2) as workers:
        workers.predict(POINTS, found.__setitem__)
    assert len(found) == 3
    assert all(outcome.error.endswith(f"too wide (perceptrons.py, line {line})") for outcome in found.values())


def test_a_script_without_a_guard_is_not_run_again(space_file: Path) -> None:
    script = space_file.with_name("plain.py")
    script.write_text(
        "from dippm.api.exploration.space import load_space\n"
        "from dippm.api.exploration.trials import Terms\n"
        "from dippm.api.exploration.workers import Workers\n"
        "from dippm.devices import find_device\n"
        "terms = Terms(device=find_device('A100'), batch=1)\n"
        f"with Workers(load_space({space_file.name!r}), terms, jobs=2) as workers:\n"
        "    point = {'depth': 1, 'width': 16, 'kind': 'none'}\n"
        "    workers.predict([point], lambda _, outcome: print(outcome.error_code or 'predicted'))\n"
    )
    run = subprocess.run([sys.executable, script], cwd=script.parent, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("predicted\n", "")
