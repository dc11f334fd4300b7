"""Versions of what decides an answer."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

import dippm.costs.kernels
import dippm.predictors
from dippm.api.deciding_versions import find_versions, hash_folder


def test_versions_of_packages_and_of_those_that_are_not_there() -> None:
    found = find_versions(["numpy", "no-package-of-this-name"])
    assert list(found) == ["dippm", "predictors", "kernels", "numpy", "no-package-of-this-name"]
    assert found["dippm"] == importlib.metadata.version("dippm")
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["no-package-of-this-name"] == ""


@pytest.mark.parametrize(("name", "package"), [("predictors", dippm.predictors), ("kernels", dippm.costs.kernels)])
def test_another_artefact_is_another_version(
    name: str, package: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_versions([])
    shutil.copytree(Path(package.__path__[0], "artefact"), tmp_path / "artefact")  # type: ignore[attr-defined]
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    assert find_versions([]) == before
    changed = max((tmp_path / "artefact").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = changed.read_bytes()
    changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    after = find_versions([])
    assert [each for each in before if before[each] != after[each]] == [name]


def test_a_folder_has_another_hash_with_another_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    first = hash_folder(tmp_path)
    (tmp_path / "a").write_bytes(b"2")
    second = hash_folder(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, hash_folder(tmp_path)}) == 3
