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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"space": {}, "front": [3]}'])
def test_a_file_that_is_no_front(tmp_path: Path, content: str) -> None:
    path = tmp_path / "front.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        rebuild(path, 1)
    assert caught.value.code == "explore.no_front"
