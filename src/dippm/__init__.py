"""dippm predicts what a deep-learning model costs on a GPU, from its file, without running it.

The names below are those of :mod:`dippm.api`, imported when they are first used. ``__version__`` is the release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dippm import api as _api

if TYPE_CHECKING:
    from dippm.api import *  # noqa: F403

    __version__: str

__all__ = _api.__all__


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("dippm")
    return getattr(_api, name)


def __dir__() -> list[str]:
    return list(__all__)
