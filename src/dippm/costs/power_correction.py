"""What calls that were measured say of the power beyond the power model: kernel ridge regression.

The coefficients of :mod:`dippm.costs.energy` are the same for all kernels. How calls use their board tells more: by
how far the power of one like them was met amiss. The correction is a sum of Gaussians around the calls that were
measured, and fades with the distance to them: of a call unlike all of them the power model says everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PowerCorrection"]

FloatArray = npt.NDArray[np.float64]

# Width of the Gaussians in standard deviations of each figure, and the variance of what no figure explains over that of
# what they do. Of models and families left out any width from 1.5 to 4 and half or twice the ratio are within 0.4
# points of it.
_WIDTH = 2.0
_NOISE = 0.6
# A figure that is the same in all calls differs by rounding.
_LEAST_SCALE = 1e-9


@dataclass(frozen=True, kw_only=True)
class PowerCorrection:
    """A factor of the power of a board, by how a call uses it.

    Args:
        columns: Names of the figures that tell how a call uses its board.
        mean: Mean of each figure over the measured calls.
        scale: Its standard deviation.
        known: Figures of the measured calls, in standard deviations from the mean.
        weight: Height of the Gaussian around each.

    Shapes:
        columns, mean, scale: [F]; known: [R][F]; weight: [R].
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    known: tuple[tuple[float, ...], ...]
    weight: tuple[float, ...]

    @classmethod
    def fit(cls, columns: Sequence[str], figures: FloatArray, errors: FloatArray) -> PowerCorrection:
        """What the errors of a power model say.

        Args:
            columns: Names of the figures.
            figures: Figures of the measured calls.
            errors: ``log(predicted / measured)`` of their power.

        Shapes:
            figures: [R, F]; errors: [R].
        """
        mean: FloatArray = figures.mean(axis=0)
        scale: FloatArray = figures.std(axis=0)
        scale[scale < _LEAST_SCALE] = 1.0
        known = _rounded((figures - mean) / scale)
        weight = np.linalg.solve(_alike(known, known) + _NOISE * np.eye(len(known)), -errors)
        return cls(
            columns=tuple(columns),
            mean=tuple(_rounded(mean).tolist()),
            scale=tuple(_rounded(scale).tolist()),
            known=tuple(tuple(row) for row in known.tolist()),
            weight=tuple(_rounded(weight).tolist()),
        )

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> PowerCorrection:
        """The correction that ``dataclasses.asdict`` gave.

        Raises:
            ValueError: Its parts do not go together.
        """
        figures = {name: tuple(held[name]) for name in ("columns", "mean", "scale", "weight")}
        correction = cls(**figures, known=tuple(tuple(row) for row in held["known"]))
        sizes = {len(row) for row in (correction.columns, correction.mean, correction.scale, *correction.known)}
        if len(sizes) != 1 or len(correction.known) != len(correction.weight):
            raise ValueError("a correction of power whose parts are of different sizes")
        return correction

    def factor(self, figures: FloatArray) -> FloatArray:
        """By what the power model's power is to be multiplied.

        Args:
            figures: How calls use their board.

        Shapes:
            figures: [..., F]; result: [...].
        """
        mean, scale, known, weight = self._arrays
        # No product of matrices: it would round a call by how many are beside it.
        result: FloatArray = np.exp((_alike((figures - mean) / scale, known) * weight).sum(axis=-1))
        return result

    @cached_property
    def _arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        return np.array(self.mean), np.array(self.scale), np.array(self.known), np.array(self.weight)


def _alike(figures: FloatArray, known: FloatArray) -> FloatArray:
    """How alike calls are to those that were measured, [..., R], 1 for the same."""
    squares: FloatArray = np.zeros((*figures.shape[:-1], len(known)))
    # Figure by figure: an array of all differences would be as many times as large.
    for place, of_known in enumerate(known.T):
        squares += np.square(figures[..., place, None] - of_known)
    result: FloatArray = np.exp(-squares / (2.0 * _WIDTH**2))
    return result


def _rounded(figures: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """What a file of text keeps of them: four digits."""
    return np.array([float(f"{figure:.4g}") for figure in figures.flat]).reshape(figures.shape)
