"""From a point of a front back to its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dippm
from dippm.api.exploration.rebuild import rebuild
from dippm.api.exploration.space import load_space
from dippm.errors import UsageError


@pytest.fixture(name="front")
def _front(space_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "front.json"
    point = {"depth": 3, "width": 32, "kind": "Gelu", "repeats": 2}
    space = {"path": str(space_file), "sha256": load_space(space_file).sha256}
    path.write_text(json.dumps({"space": space, "front": [{"choices": point}]}))
    return path


def test_a_point_by_its_number(front: Path) -> None:
    built = rebuild(front, 1)
    assert built.choices == {"depth": 3, "width": 32, "kind": "Gelu", "repeats": 2}
    assert dippm.load(built.model).parameter_count == 256 * 32 + 2 * 32 * 32


@pytest.mark.parametrize("number", [0, 2, True, "1"])
def test_a_number_that_is_none(front: Path, number: int) -> None:
    with pytest.raises(UsageError) as caught:
        rebuild(front, number)
    assert caught.value.code == "explore.no_point"


def test_a_space_that_changed_or_moved(front: Path, space_file: Path) -> None:
    elsewhere = space_file.with_name("moved.py")
    space_file.rename(elsewhere)
    with pytest.raises(UsageError) as caught:
        rebuild(front, 1)
    assert caught.value.code == "space.missing"
    assert rebuild(front, 1, space=elsewhere).choices["depth"] == 3
    elsewhere.write_text(elsewhere.read_text() + "\n")
    with pytest.raises(UsageError) as caught:
        rebuild(front, 1, space=elsewhere)
    assert caught.value.code == "explore.space_changed"


def test_a_space_that_changed_does_not_run(front: Path, space_file: Path) -> None:
    marker = space_file.with_name("it_ran")
    space_file.write_text(f"open({str(marker)!r}, 'w').close()\n{space_file.read_text()}")
    with pytest.raises(UsageError) as caught:
        rebuild(front, 1)
    assert caught.value.code == "explore.space_changed"
    assert not marker.exists()


@pytest.mark.parametrize("named", [{}, {"sha256": None}])
def test_a_front_that_names_a_file_without_its_hash_runs_nothing(
    front: Path, space_file: Path, named: dict[str, object]
) -> None:
    given = json.loads(front.read_text())
    front.write_text(json.dumps({**given, "space": {"path": str(space_file), **named}}))
    with pytest.raises(UsageError) as caught:
        rebuild(front, 1)
    assert caught.value.code == "explore.space_changed"


def test_a_space_that_was_made_in_python_and_lies_in_a_file_by_now(front: Path, space_file: Path) -> None:
    given = json.loads(front.read_text())
    front.write_text(json.dumps({**given, "space": {"path": None, "sha256": "0" * 64}}))
    with pytest.raises(UsageError) as caught:
        rebuild(front, 1)
    assert caught.value.code == "explore.no_space"
    assert rebuild(front, 1, space=space_file).choices["depth"] == 3


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"space": {}, "front": [3]}'])
def test_a_file_that_is_no_front(tmp_path: Path, content: str) -> None:
    path = tmp_path / "front.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        rebuild(path, 1)
    assert caught.value.code == "explore.no_front"
