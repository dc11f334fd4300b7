"""The network of convolutions for predictions without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import LARGEST_CORRECTION, PhysicalPlan, PhysicalSamples, Ramps
from dippm.features.physical.columns import AT
from dippm.predictors.network_steps import multiply

__all__ = ["CONVOLUTIONS", "ConvolutionForward"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

CONVOLUTIONS = "convolutions."
"""What the names of its tensors begin with."""

_CLIP = np.float32(4.0)
_BOUND = np.float32(LARGEST_CORRECTION)


class ConvolutionForward:
    """What :class:`dippm.models.convolution.ConvolutionNetwork` gives, to float32's rounding.

    Args:
        tensors: Weights and scale by the names of the artefact, such as ``"convolutions.input.weight"``.
        columns: The feature that each of the artefact's columns is.

    Raises:
        KeyError, ValueError: They are no such network's.
    """

    def __init__(self, tensors: Mapping[str, Float32Array], columns: IndexArray) -> None:
        own = {name.removeprefix(CONVOLUTIONS): values for name, values in tensors.items() if CONVOLUTIONS in name}
        self._columns, self._mean, self._factor = columns, own["scale.mean"], own["scale.factor"]
        self._ramps, self._inputs = Ramps.from_tensors(own), own["inputs"].astype(np.int64)
        layers = sum(name.startswith("own.") and name.endswith(".weight") for name in own)
        self._layers = [
            (np.ascontiguousarray(own[f"{name}.weight"].T)[None], own[f"{name}.bias"][None])
            for name in ("input", *(f"own.{layer}" for layer in range(layers)), "output")
        ]
        known = len(columns) + len(self._ramps)
        if len(self._inputs) != self._layers[0][0].shape[1] or self._inputs.max(initial=0) >= known:
            raise ValueError(f"{known} columns and ramps do not make {self._layers[0][0].shape[1]} inputs")

    @staticmethod
    def find(physical: PhysicalPlan) -> IndexArray:
        """The classes of operators that are convolutions."""
        return np.flatnonzero(physical.static[:, AT["is_conv"]] > 0.0)

    def factors(self, sample: PhysicalSamples, chosen: IndexArray) -> FloatArray:
        """What the kernel time of each of the chosen convolutions is to be multiplied by, [B, len(chosen)]."""
        changing = sample.changing.take(chosen, axis=1)
        static = np.broadcast_to(sample.static.take(chosen, axis=0), (*changing.shape[:2], sample.static.shape[1]))
        features = np.concatenate([static, changing], axis=2).take(self._columns, axis=2)
        scaled = np.clip((features - self._mean) * self._factor, -_CLIP, _CLIP)
        values = np.concatenate([scaled, self._ramps.of(scaled)], axis=2).take(self._inputs, axis=2)
        first, *own, last = self._layers
        hidden = np.maximum(multiply(values, *first), 0.0)
        for weights, bias in own:
            hidden += np.maximum(multiply(hidden, weights, bias), 0.0)
        logarithm = _BOUND * np.tanh(multiply(hidden, *last)[:, 0, :, 0] / _BOUND)
        result: FloatArray = np.exp(logarithm.astype(np.float64))
        return result
