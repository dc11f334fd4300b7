"""A program that trains a small network on a Ray cluster, and may be disturbed while it does.

Arguments: address of the cluster, folder, workers, epochs, journal to which every process adds its id at every step,
and seconds per step. The folder holds ``samples.pickle``: samples, parts and settings.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dippm.cluster.training import RayEpochs
from dippm.datasets.graph_samples import Part
from dippm.features.scaling import Scaling
from dippm.models.registry import make_network
from dippm.training.fit_network import fit_samples
from dippm.training.graph_batches import GraphTensors


class JournalNetwork(torch.nn.Module):
    """A network that tells when and where it is trained."""

    def __init__(self, network: torch.nn.Module, journal: Path, step_s: float) -> None:
        super().__init__()
        self.network = network
        self._journal = journal
        self._step_s = step_s

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        if self.training:
            with self._journal.open("a", encoding="utf-8") as stream:
                stream.write(f"{os.getpid()}\n")
            time.sleep(self._step_s)
        outputs: torch.Tensor = self.network(*parts)
        return outputs


def main() -> None:
    address, place, workers, epochs, journal, step_s = sys.argv[1:]
    folder = Path(place)
    samples, parts, settings = pickle.loads((folder / "samples.pickle").read_bytes())
    chosen = np.flatnonzero(parts == Part.TRAINING)
    scaling = Scaling.fit(samples.nodes_of(chosen), samples.static_features[chosen], samples.targets[chosen])
    fitted = fit_samples(
        GraphTensors.of(samples, scaling),
        parts,
        replace(settings, epochs=int(epochs), devices=int(workers)),
        folder / "run",
        data_hash=samples.key,
        scaling=scaling,
        make=lambda: JournalNetwork(
            make_network(settings.model, hidden=settings.hidden, dropout=settings.dropout), Path(journal), float(step_s)
        ),
        resume=True,
        run_epochs=RayEpochs(address=address, workers=int(workers)),
    )
    (folder / "fitted.pickle").write_bytes(pickle.dumps((fitted.weights, fitted.epochs, fitted.best_epoch)))
    sys.stdout.write(f"{fitted.epochs} {fitted.device}\n")


if __name__ == "__main__":
    main()
