"""Scaling of what a graph network sees and says, learned from training data alone and stored with the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LEAST_SPREAD", "Scaling", "TargetScaling", "moments"]

FloatArray = npt.NDArray[np.float64]

# Below it a column does not vary; dividing would blow up rounding errors.
LEAST_SPREAD = 1e-6
# A class of one operator in ten thousand has a deviation of 0.01 and would enter as 100 where it occurs at all.
_LEAST_NODE_SPREAD = 0.1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TargetScaling:
    """Scaling of targets, which span decades: mean 0 and deviation 1 in their logarithm.

    What is compared is the error relative to the measured figure.

    Args:
        target_mean: Means of the logarithms of the targets; 0 for a target without a single value.
        target_std: Their standard deviations; 1 for a target without spread.

    Shapes:
        [T].
    """

    target_mean: FloatArray
    target_std: FloatArray

    def scale_targets(self, targets: FloatArray) -> npt.NDArray[np.float32]:
        """Targets for a loss; NaN stays NaN."""
        return ((np.log(targets) - self.target_mean) / self.target_std).astype(np.float32)

    def unscale_targets(self, outputs: npt.NDArray[np.floating[Any]]) -> FloatArray:
        """What a network says, in the targets' units."""
        return np.exp(outputs.astype(np.float64) * self.target_std + self.target_mean)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaling(TargetScaling):
    """Shift and scale of every column.

    Static features and targets span decades: they are scaled by the mean and the standard deviation of their
    logarithm (of one plus the value, for static features, which may be 0). A column without spread keeps a scale of 1,
    and no node feature is divided by less than 0.1, so that operators that training hardly saw stay within the range
    of all others.

    Args:
        node_mean: Means of the node features.
        node_std: Standard deviations of the node features, at least 0.1.
        static_mean: Means of ``log1p`` of the static features.
        static_std: Their standard deviations.

    Shapes:
        node: [F]; static: [S].
    """

    node_mean: FloatArray
    node_std: FloatArray
    static_mean: FloatArray
    static_std: FloatArray

    @classmethod
    def fit(
        cls, node_features: npt.NDArray[np.floating[Any]], static_features: FloatArray, targets: FloatArray
    ) -> Scaling:
        """Learn from the nodes, graphs and targets of the training split.

        Args:
            node_features: Features of all nodes of its graphs.
            static_features: Static features of its graphs.
            targets: Targets, NaN where there is none.

        Shapes:
            node_features: [N, F]; static_features: [G, S]; targets: [G, T].
        """
        node_mean, node_std = moments(node_features.astype(np.float64))
        static_mean, static_std = moments(np.log1p(static_features))
        target_mean, target_std = moments(np.log(targets))
        return cls(
            node_mean=node_mean,
            node_std=np.maximum(node_std, _LEAST_NODE_SPREAD),
            static_mean=static_mean,
            static_std=static_std,
            target_mean=target_mean,
            target_std=target_std,
        )

    def scale_nodes(self, node_features: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Node features for a network."""
        return ((node_features - self.node_mean) / self.node_std).astype(np.float32)

    def scale_statics(self, static_features: FloatArray) -> npt.NDArray[np.float32]:
        """Static features for a network."""
        return ((np.log1p(static_features) - self.static_mean) / self.static_std).astype(np.float32)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain numbers for JSON; :meth:`from_dict` reads them back without loss."""
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """Read what :meth:`to_dict` wrote; raises KeyError, TypeError or ValueError on anything else."""
        columns = {field.name: np.asarray(stored[field.name], dtype=np.float64) for field in fields(cls)}
        for name, values in columns.items():
            if values.ndim != 1 or not np.isfinite(values).all():
                raise ValueError(f"'{name}' is not a list of finite numbers")
        return cls(**columns)


def moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of the known values of each column; 0 where there is none, 1 without spread."""
    is_known = np.isfinite(values)
    count = np.maximum(is_known.sum(axis=0), 1)
    mean = np.where(is_known, values, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(is_known, values - mean, 0.0) ** 2).sum(axis=0) / count)
    return mean, np.where(spread > LEAST_SPREAD, spread, 1.0)
