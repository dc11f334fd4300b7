"""What makes inputs of a network from features of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dippm.features.physical import Ramps
from dippm.features.physical.columns import AT
from dippm.graph import OpKind
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["FeatureScale"]

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

# A column that does not vary in training says nothing, whatever it is later.
_LEAST_SPREAD = 1e-6
_KINDS = np.array([AT[f"is_{kind.value}"] for kind in OpKind])
# Beyond so many deviations a feature counts as no further away: what no training sample had must not run off.
_CLIP = 4.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureScale:
    """What makes inputs of a network from node features.

    Args:
        mean: What is taken off each.
        factor: What each is multiplied by, 0 where a column did not vary or is passed over.
        ramps: Ramps of the scaled features.

    Shapes:
        mean, factor: [F]; ramps: [R].
    """

    mean: Float32Array
    factor: Float32Array
    ramps: Ramps = field(default_factory=Ramps.none)

    @classmethod
    def fit(
        cls, samples: AdditiveSamples, chosen: IndexArray, passed_over: Sequence[str] = (), *, ramps: int = 0
    ) -> FeatureScale:
        """Learn from the nodes of the training samples.

        Args:
            samples: All samples.
            chosen: Those of the training.
            passed_over: Columns that networks are not to see.
            ramps: Ramps that each size is given as.
        """
        offsets = samples.arrays.node_offsets
        is_chosen = np.zeros(len(samples), dtype=np.bool_)
        is_chosen[chosen] = True
        nodes = samples.arrays.node_features[np.repeat(is_chosen, np.diff(offsets))]
        return cls.of_nodes(nodes, passed_over, ramps=ramps)

    @classmethod
    def of_nodes(cls, nodes: Float32Array, passed_over: Sequence[str] = (), *, ramps: int = 0) -> FeatureScale:
        """Learn from nodes; see :meth:`fit`.

        Shapes:
            nodes: [N, F].
        """
        mean, spread = nodes.mean(axis=0, dtype=np.float64), nodes.std(axis=0, dtype=np.float64)
        factor = np.where(spread > _LEAST_SPREAD, 1.0 / np.maximum(spread, _LEAST_SPREAD), 0.0)
        factor[[AT[name] for name in passed_over]] = 0.0
        scale = cls(mean=mean.astype(np.float32), factor=factor.astype(np.float32))
        return replace(scale, ramps=Ramps.fit(nodes, scale.apply(nodes), steps=ramps)) if ramps else scale

    def apply(self, features: Float32Array) -> Float32Array:
        """Scaled features, [N, F]."""
        result: Float32Array = np.clip((features - self.mean) * self.factor, -_CLIP, _CLIP)
        return result

    def is_unseen(self, features: Float32Array) -> npt.NDArray[np.bool_]:
        """Which operators are of a kind that no sample of the training had: these keep the plain sum's time, [N]."""
        is_absent = (self.factor[_KINDS] == 0.0) & (self.mean[_KINDS] == 0.0)
        result: npt.NDArray[np.bool_] = np.any(features[:, _KINDS[is_absent]] > 0.0, axis=1)
        return result

    def inputs(self, features: Float32Array) -> Float32Array:
        """Scaled features and their ramps: what a network reads, [N, F + R]."""
        scaled = self.apply(features)
        return np.concatenate([scaled, self.ramps.of(scaled)], axis=1) if len(self.ramps) else scaled
