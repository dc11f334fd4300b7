"""Processes of multiprocessing that do not run the caller's script again.

A spawned one imports the script that its parent runs. Where that has no ``if __name__ == "__main__":`` it starts such
processes itself, and ends before it has done anything.
"""

from __future__ import annotations

import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Lock
from types import ModuleType

__all__ = ["FreshSpawnContext"]

_HIDING = Lock()


class _FreshProcess(SpawnProcess):
    def start(self) -> None:
        """Start it while there is no script to be found."""
        with _HIDING:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super().start()
            finally:
                sys.modules["__main__"] = script


class FreshSpawnContext(SpawnContext):
    """Spawns processes that know nothing of the caller's script: what they are given must be of modules."""

    Process = _FreshProcess
