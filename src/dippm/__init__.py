"""dippm predicts what a deep-learning model costs on a GPU, from its file, without running it.

The names below are those of :mod:`dippm.api`, imported when they are first used.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from dippm import api as _api

if TYPE_CHECKING:
    from dippm.api import *  # noqa: F403

__all__ = _api.__all__


class _Package(ModuleType):
    """This package, in which ``dippm.measure`` is the verb whether or not the subpackage of that name is imported.

    The import system sets a subpackage as an attribute of its package when it is first imported; it is found by
    ``from dippm.measure...`` all the same.
    """

    @property
    def measure(self) -> object:
        """See :func:`dippm.api.measuring.measure`."""
        return _api.measure

    @measure.setter
    def measure(self, subpackage: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    return getattr(_api, name)


def __dir__() -> list[str]:
    return list(__all__)
