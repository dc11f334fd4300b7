"""Scaling of what DNNPerf's networks see and say, learned from training data alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.features.scaling import LEAST_SPREAD, TargetScaling, moments

__all__ = ["ColumnScaling", "DnnperfScaling", "Scaler"]

FloatArray = npt.NDArray[np.float64]


class Scaler(StrEnum):
    """How columns are scaled: by minimum and maximum to between -1 and 1, or to mean 0 and deviation 1.

    The paper scales by minimum and maximum and names no range. Values around 0 are learned from in fewer epochs than
    those between 0 and 1; the choice was made on a validation part.
    """

    MIN_MAX = "min-max"
    STANDARD = "standard"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ColumnScaling:
    """Shift and scale of every column: ``(value - shift) / scale``.

    Args:
        shift: Middle between least and largest value of each column of the training split, or its mean.
        scale: Half its span, or its standard deviation; 1 for a column that does not vary.

    Shapes:
        shift, scale: [F].
    """

    shift: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, values: npt.NDArray[np.floating[Any]], scaler: Scaler) -> ColumnScaling:
        """Learn from the rows of the training split.

        Shapes:
            values: [N, F]; of no rows nothing is learned, and the columns stay as they are.
        """
        if not len(values):
            columns = values.shape[1]
            return cls(shift=np.zeros(columns), scale=np.ones(columns))
        if scaler is Scaler.MIN_MAX:
            low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
            shift, scale = (low + high) / 2, (high - low) / 2
        else:
            shift = values.mean(axis=0, dtype=np.float64)
            scale = values.std(axis=0, dtype=np.float64)
        return cls(shift=shift, scale=np.where(scale > LEAST_SPREAD, scale, 1.0))

    def __call__(self, values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Scale; values beyond those of the training split come out beyond its range."""
        return ((values - self.shift) / self.scale).astype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DnnperfScaling(TargetScaling):
    """Scaling of nodes, edges, sums over graphs, and targets; that of targets is the same under either scaler.

    Args:
        nodes: Scaling of the node values; the one-hot operator is left as it is.
        edges: Scaling of the edge values.
        sums: Scaling of the sums over each graph.
    """

    nodes: ColumnScaling
    edges: ColumnScaling
    sums: ColumnScaling

    @classmethod
    def fit(
        cls,
        *,
        nodes: npt.NDArray[np.floating[Any]],
        edges: npt.NDArray[np.floating[Any]],
        sums: npt.NDArray[np.floating[Any]],
        targets: FloatArray,
        scaler: Scaler,
    ) -> DnnperfScaling:
        """Learn from the training split.

        Args:
            nodes: Node values of its graphs.
            edges: Edge values of its graphs.
            sums: Sums over its graphs.
            targets: Its targets, NaN where there is none.
            scaler: How columns are scaled.

        Shapes:
            nodes: [N, V]; edges: [E, W]; sums: [G, S]; targets: [G, T].
        """
        target_mean, target_std = moments(np.log(targets))
        return cls(
            nodes=ColumnScaling.fit(nodes, scaler),
            edges=ColumnScaling.fit(edges, scaler),
            sums=ColumnScaling.fit(sums, scaler),
            target_mean=target_mean,
            target_std=target_std,
        )
