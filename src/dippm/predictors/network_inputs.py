"""Which features networks read, and how: those that never change apart from those that do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import Ramps

__all__ = ["NetworkInputs"]

Float32Array = npt.NDArray[np.float32]

_CLIP = np.float32(4.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NetworkInputs:
    """Some inputs of the networks.

    Args:
        places: Places among the columns of the artefact.
        features: The features that they are.
        mean: What is taken off each.
        factor: What each is multiplied by.
        ramps: Ramps of these inputs.
        inputs: Places among all inputs of the networks, those of the ramps last.

    Shapes:
        places, features, mean, factor: [F]; ramps: [R]; inputs: [F + R].
    """

    places: IndexArray
    features: IndexArray
    mean: Float32Array
    factor: Float32Array
    ramps: Ramps
    inputs: IndexArray

    @classmethod
    def of(
        cls, columns: IndexArray, tensors: Mapping[str, Float32Array], ramps: Ramps, *, first: int, stop: int
    ) -> NetworkInputs:
        """Those that are some of the features.

        Args:
            columns: The feature that each column of the artefact is.
            tensors: The artefact's tensors.
            ramps: All ramps of the artefact.
            first: First of the features.
            stop: Behind the last one.
        """
        (places,) = np.nonzero((columns >= first) & (columns < stop))
        (own,) = np.nonzero(np.isin(ramps.column, places))
        return cls(
            places=places,
            features=columns[places] - first,
            mean=tensors["scale.mean"][places],
            factor=tensors["scale.factor"][places],
            ramps=Ramps(
                column=np.searchsorted(places, ramps.column[own]), start=ramps.start[own], length=ramps.length[own]
            ),
            inputs=np.concatenate([places, len(columns) + own]),
        )

    def expand(self, scaled: Float32Array) -> Float32Array:
        """Scaled features and their ramps, in the order of ``inputs``."""
        return np.concatenate([scaled, self.ramps.of(scaled)], axis=-1) if len(self.ramps) else scaled

    def scale(self, features: Float32Array) -> Float32Array:
        """Of the features those that are read, scaled, in the order of ``places``."""
        scaled: Float32Array = features.take(self.features, axis=-1)
        scaled -= self.mean
        scaled *= self.factor
        np.clip(scaled, -_CLIP, _CLIP, out=scaled)
        return scaled
