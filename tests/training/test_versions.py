from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import pytest

from dippm.training import versions
from dippm.training.versions import find_versions


def test_versions_are_those_of_the_installed_packages() -> None:
    found = find_versions()
    assert found["python"] == platform.python_version()
    assert {name: found[name] for name in ("dippm", "numpy")} == {name: version(name) for name in ("dippm", "numpy")}


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(package: str) -> str:
        if package == "torch":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(versions, "version", without_torch)
    found = find_versions()
    assert "torch" not in found
    assert found["numpy"] == "1.0"
