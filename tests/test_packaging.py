"""What is installed: a file that no pattern of pyproject.toml finds is there for whoever works here and nobody else."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dippm"
# Made on each machine, and what of that is made from.
BUILT = {".pyc", ".so", ".pyd", ".c", ".h"}


def test_every_file_of_the_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["dippm"]
    installed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in BUILT}
    left_out = sorted(str(path.relative_to(PACKAGE)) for path in there - installed if path.suffix != ".py")
    assert left_out == []


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert (
        sorted(str(folder.relative_to(PACKAGE)) for folder in folders if not (folder / "__init__.py").is_file()) == []
    )
