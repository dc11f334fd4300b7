"""``dippm train`` for a test that disturbs it: a process that trains says so at every step, and takes its time.

Every epoch is told on stderr.

Arguments: journal to which every process adds its id at every step, seconds per step, and those of the command.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from dippm.cli import main as run_command
from dippm.cli import progress
from dippm.models.registry import make_network
from dippm.training import fit_network


@dataclass(frozen=True)
class Journal:
    """Called by a network before it is."""

    path: Path
    step_s: float

    def __call__(self, network: torch.nn.Module, _: object) -> None:
        if network.training:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(f"{os.getpid()}\n")
            time.sleep(self.step_s)


def main() -> int:
    journal = Journal(Path(sys.argv[1]), float(sys.argv[2]))

    def make(name: str, **sizes: float) -> torch.nn.Module:
        network: torch.nn.Module = make_network(name, **sizes)  # type: ignore[arg-type]
        network.register_forward_pre_hook(journal)
        return network

    fit_network.make_network = make  # type: ignore[assignment]
    progress._LINE_EVERY_S = 0.0
    return run_command(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
