"""One measured configuration of one recipe: a row of the label store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from dippm.datasets.recipes.recipe import Recipe
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement

__all__ = ["OWN_SOURCE", "PREDICTED_SOURCE", "Label"]

OWN_SOURCE = "dippm"
"""Source of what the project measures itself."""
PREDICTED_SOURCE = "dippm predicted"
"""Source of what nobody measured: the shipped predictor's answers, for networks to learn from first."""

_KEY_DIGITS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A measurement with all that it belongs to.

    Args:
        recipe: The model and its batch.
        configuration: How it was run; its batch is the recipe's.
        measurement: What came out.
        repeat: 0 for the first measurement of a configuration, 1 for the second, which tells the machine's own
            noise, and so on with every pass.
        graph_hash: Hash of the model's graph, ``""`` where it was not built.
        source: Who measured: ``"dippm"``, or the table that it was imported from; ``"dippm predicted"`` where nobody
            did.
    """

    recipe: Recipe
    configuration: Configuration
    measurement: Measurement
    repeat: int = 0
    graph_hash: str = ""
    source: str = OWN_SOURCE

    @property
    def key(self) -> str:
        """Names what was asked, whatever came out: the store holds one label of a key. 16 hex digits."""
        conditions = self.configuration.conditions
        asked = [
            self.recipe.key,
            self.configuration.engine.value,
            conditions.precision.value,
            conditions.mode.value,
            conditions.layout.value,
            conditions.runtime.value,
            "" if conditions.optimizer is None else conditions.optimizer.value,
            self.measurement.device,
            self.repeat,
            self.source,
        ]
        return hashlib.sha256(json.dumps(asked, separators=(",", ":")).encode()).hexdigest()[:_KEY_DIGITS]
