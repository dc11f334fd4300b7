"""How unlike everything measured a model on a device is, and how wide its interval has to be for that.

A call is described by the features of its operators, each weighted with its part of the plain sum's time: what the time
goes to, of which sizes, and how well it fits the device. The distance to the nearest call that the network was trained
on, in the directions in which those differ most, tells how far the prediction can be trusted: the 90 % quantile of the
error of calls that were left out grows fivefold with it, by the same curve whether a model was left out, its whole
family or the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dippm.errors import DippmError
from dippm.predictors.network_steps import Layer, multiply

__all__ = ["Novelty", "describe_calls"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

_PREFIX = "novelty."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Novelty:
    """The calls that a network was trained on, and the interval's half-width by the distance to them.

    Args:
        mean: Mean descriptor.
        basis: Directions in which descriptors differ most, a column each.
        known: The trained calls along these directions.
        distances: Distances for which a half-width is known, ascending.
        half_widths: Half-widths of the 90 % interval of ``log(measured / predicted)`` there, never falling.

    Shapes:
        mean: [F]; basis: [F, D]; known: [R, D]; distances, half_widths: [K].
    """

    mean: Float32Array
    basis: Float32Array
    known: Float32Array
    distances: FloatArray
    half_widths: FloatArray
    _along: Layer = field(init=False)
    _apart: Layer = field(init=False)

    def __post_init__(self) -> None:
        """Keep what of a distance is the known calls' alone."""
        object.__setattr__(self, "_along", Layer.of(self.basis[None]))
        squares = np.square(self.known).sum(axis=1)
        object.__setattr__(self, "_apart", Layer.of(-2.0 * self.known.T[None], squares[None]))

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Float32Array], *, distances: Sequence[float], half_widths: Sequence[float]
    ) -> Novelty:
        """What :meth:`tensors` and a manifest hold.

        Raises:
            DippmError: ``artefact.unreadable`` where a tensor is missing or they do not go together.
        """
        try:
            held = {name: tensors[f"{_PREFIX}{name}"] for name in ("mean", "basis", "known")}
            return cls(**held, distances=np.array(distances), half_widths=np.array(half_widths))
        except (KeyError, ValueError) as exc:
            what = f"lack {exc}" if isinstance(exc, KeyError) else f"cannot be read: {exc}"
            raise DippmError(
                f"The weights of the additive predictor {what}.",
                code="artefact.unreadable",
                cure="Rebuild it with: python -m dippm.training.additive",
            ) from exc

    def tensors(self) -> dict[str, Float32Array]:
        """The arrays by name, for a file of weights."""
        return {f"{_PREFIX}{name}": getattr(self, name) for name in ("mean", "basis", "known")}

    def distance(self, descriptors: Float32Array) -> FloatArray:
        """Distance of each call to the nearest known one.

        Shapes:
            descriptors: [n, F]; result: [n].
        """
        # A call gets the same alone and beside others.
        at = multiply((descriptors - self.mean)[None], self._along)[0]
        # |a - b|^2 = |a|^2 - 2 a.b + |b|^2: one product instead of all differences.
        nearest = multiply(at, self._apart)[0, 0].min(axis=1) + np.square(at[0]).sum(axis=1)
        result: FloatArray = np.sqrt(np.maximum(nearest, 0.0)).astype(np.float64)
        return result

    def half_width(self, distance: FloatArray) -> FloatArray:
        """Half-width of the 90 % interval of ``log(measured / predicted)``.

        Beyond the last of its distances, the middle of the farthest that were calibrated, it grows in proportion.

        Shapes:
            distance and result: [n].
        """
        beyond = np.maximum(distance / self.distances[-1], 1.0)
        result: FloatArray = np.interp(distance, self.distances, self.half_widths) * beyond
        return result


def describe_calls(features: Float32Array, time_ms: FloatArray) -> Float32Array:
    """Descriptors of calls: the mean of their operators' scaled features, weighted with time; 0 where none takes any.

    Args:
        features: Scaled features of each class of operators.
        time_ms: Time of all operators of each class by the plain sum.

    Shapes:
        features: [n, C, F], or [1, C, F] where they are the same in all; time_ms: [n, C]; result: [n, F].
    """
    call_ms = time_ms.sum(axis=1, keepdims=True)
    weight = np.divide(time_ms, call_ms, out=np.zeros_like(time_ms), where=call_ms > 0.0).astype(np.float32)
    result: Float32Array = np.matmul(weight[:, None], features)[:, 0]
    return result
