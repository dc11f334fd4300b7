"""Learn how far a call is from those trained on, and how the error grows with that distance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.predictors.additive_novelty import Novelty, describe_calls
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.feature_scale import FeatureScale
from dippm.training.physics import conformal_quantile

__all__ = ["describe_samples", "find_neighbours", "fit_half_widths", "with_half_widths"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_DIRECTIONS = 24
_BINS = 8
# Of fewer rows a quantile of one in ten hangs on which of them are among the five worst.
_LEAST_ROWS = 50


def describe_samples(samples: AdditiveSamples, scale: FeatureScale) -> Float32Array:
    """Descriptors of all samples, see :func:`dippm.predictors.additive_novelty.describe_calls`.

    Shapes:
        result: [S, F].
    """
    arrays = samples.arrays
    result = np.empty((len(samples), arrays.node_features.shape[1]), dtype=np.float32)
    for position in range(len(samples)):
        own = slice(int(arrays.node_offsets[position]), int(arrays.node_offsets[position + 1]))
        time_ms = (arrays.kernel_ms[own] * arrays.count[own]).astype(np.float64)
        result[position] = describe_calls(scale.apply(arrays.node_features[own])[None], time_ms[None])[0]
    return result


def find_neighbours(descriptors: Float32Array, training: IndexArray) -> Novelty:
    """The trained calls in the directions in which they differ most; half-widths are not known yet.

    Args:
        descriptors: Descriptors of all samples.
        training: The samples that a network was trained on.

    Shapes:
        descriptors: [S, F].
    """
    known = descriptors[training]
    mean = known.mean(axis=0)
    _, _, directions = np.linalg.svd((known - mean).astype(np.float64), full_matrices=False)
    basis = directions[:_DIRECTIONS].T.astype(np.float32)
    return Novelty(
        mean=mean, basis=basis, known=(known - mean) @ basis, distances=np.array([1.0]), half_widths=np.array([0.0])
    )


def fit_half_widths(distance: FloatArray, score: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split conformal prediction by distance: in bins of equal counts, made to rise.

    Args:
        distance: Distances of calls that were left out of the training which predicted them.
        score: Their ``|log(measured / predicted)|``.

    Returns:
        Distances, each the median of its bin, and the half-widths there.

    Shapes:
        distance, score: [n]; results: [K].
    """
    order = np.argsort(distance, kind="stable")
    bins = np.array_split(order, max(1, min(_BINS, len(order) // _LEAST_ROWS)))
    middle = np.array([np.median(distance[chosen]) for chosen in bins])
    width = np.array([conformal_quantile(score[chosen]) for chosen in bins])
    return middle, np.maximum.accumulate(width)


def with_half_widths(novelty: Novelty, curve: tuple[FloatArray, FloatArray]) -> Novelty:
    """The same neighbours with half-widths by distance."""
    return Novelty(
        mean=novelty.mean, basis=novelty.basis, known=novelty.known, distances=curve[0], half_widths=curve[1]
    )
