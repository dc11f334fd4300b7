"""Versions of what a training depends on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["find_versions"]

_PACKAGES = ("dippm", "numpy", "torch", "torch-geometric", "lightning", "lightgbm")


def find_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a training comes to, without those not installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
