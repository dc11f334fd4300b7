"""Labels that a network learns from before those that it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import GraphSamples, Part, parts_of_split
from dippm.datasets.splits import split_by_graph
from dippm.errors import UsageError

__all__ = ["Pretraining"]

_FRACTIONS = (0.9, 0.1, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pretraining:
    """What a network learns first.

    Args:
        samples: Samples of other labels, such as predicted ones, with the same features.
        epochs: Passes over them, at least 1.

    Raises:
        UsageError: ``train.settings``.
    """

    samples: GraphSamples
    epochs: int

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(
                f"What a network learns first takes 1 epoch or more. Got {self.epochs} instead.", code="train.settings"
            )

    @property
    def key(self) -> str:
        """Names it among others."""
        return f"{self.samples.key}-{self.epochs}"

    def describe(self) -> dict[str, Any]:
        """What it is made of, for a record."""
        labels = self.samples.labels
        return {
            "data_hash": self.samples.key,
            "samples": len(labels),
            "sources": sorted({label.source for label in labels}),
            "devices": sorted({label.measurement.device for label in labels}),
            "software": sorted({label.measurement.software.framework for label in labels}),
            "epochs": self.epochs,
        }

    def parts(self, samples: GraphSamples, parts: npt.NDArray[np.int8], *, seed: int) -> npt.NDArray[np.int8]:
        """Part of each of its samples: models that the later training is not to know are in none.

        Those are the graphs of the later validation and test splits, and the families of which these splits have
        models and the later training split has none.

        Args:
            samples: Samples of the later training.
            parts: Their parts.
            seed: Draws the graphs of the validation split, a tenth.
        """
        families = samples.families
        is_trained, is_held = parts == Part.TRAINING, (parts == Part.VALIDATION) | (parts == Part.TEST)
        held = [samples.labels[position] for position in np.flatnonzero(is_held)]
        graphs, models = {label.graph_hash for label in held}, {label.recipe.model_key for label in held}
        unknown = set(families[is_held].tolist()) - set(families[is_trained].tolist())
        free = [
            label
            for label in self.samples.labels
            if label.graph_hash not in graphs
            and label.recipe.model_key not in models
            and label.recipe.family not in unknown
        ]
        split = split_by_graph(free, fractions=_FRACTIONS, seed=seed)
        return parts_of_split(self.samples, split)
