"""Versions of what decides an answer beside the question: who goes on with earlier work must find them unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dippm.costs.kernels
import dippm.predictors

__all__ = ["find_versions", "hash_folder"]

_ARTEFACTS = {"predictors": dippm.predictors, "kernels": dippm.costs.kernels}


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of dippm, of its predictors' and kernels' artefacts, and of packages.

    Args:
        packages: Names of distributions.

    Returns:
        Name to version: that of a package, ``""`` where it is not installed, or a hash of the artefacts' content.
    """
    found = {"dippm": version("dippm")}
    found |= {name: hash_folder(Path(package.__path__[0], "artefact")) for name, package in _ARTEFACTS.items()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def hash_folder(folder: Path) -> str:
    """A hash of the names and contents of all files in a folder, short."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(os.fsencode(path.relative_to(folder).as_posix()) + f"\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
