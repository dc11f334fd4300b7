"""The network of convolutions for predictions without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import COLUMNS, LARGEST_CORRECTION, STATIC, PhysicalPlan, PhysicalSamples, Ramps
from dippm.features.physical.columns import AT
from dippm.predictors.network_inputs import NetworkInputs
from dippm.predictors.network_steps import Layer, begin, multiply

__all__ = ["CONVOLUTIONS", "ConvolutionForward", "PreparedConvolutions"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

CONVOLUTIONS = "convolutions."
"""What the names of its tensors begin with."""

_BOUND = np.float32(LARGEST_CORRECTION)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedConvolutions:
    """What depends on neither batch nor device.

    Args:
        chosen: The classes of operators that are convolutions.
        first: What their features that do not change make of the first layer, for each different set of them.
        number: Which of these each convolution has.

    Shapes:
        chosen, number: [K]; first: [1, U, W].
    """

    chosen: IndexArray
    first: Float32Array
    number: IndexArray


class ConvolutionForward:
    """What :class:`dippm.models.convolution.ConvolutionNetwork` gives, to float32's rounding.

    Args:
        tensors: Weights and scale by the names of the artefact, such as ``"convolutions.input.weight"``.
        columns: The feature that each of the artefact's columns is.

    Raises:
        KeyError, ValueError, IndexError: They are no such network's.
    """

    def __init__(self, tensors: Mapping[str, Float32Array], columns: IndexArray) -> None:
        own = {name.removeprefix(CONVOLUTIONS): v for name, v in tensors.items() if name.startswith(CONVOLUTIONS)}
        ramps, inputs, weights = Ramps.from_tensors(own), own["inputs"].astype(np.int64), own["input.weight"].T
        known = len(columns) + len(ramps)
        if len(inputs) != len(weights) or not np.all((inputs >= 0) & (inputs < known)):
            raise ValueError(f"{known} columns and ramps do not make {len(weights)} inputs")
        # Features that it reads neither themselves nor as ramps are not looked at.
        (of_ramps,) = np.nonzero(np.isin(len(columns) + np.arange(len(ramps)), inputs))
        used = np.union1d(inputs[inputs < len(columns)], ramps.column[of_ramps])
        read = np.concatenate([used, len(columns) + of_ramps])
        rows = np.zeros((len(read), weights.shape[1]), dtype=np.float32)
        rows[np.searchsorted(read, inputs)] = weights
        ramps = Ramps(
            column=np.searchsorted(used, ramps.column[of_ramps]),
            start=ramps.start[of_ramps],
            length=ramps.length[of_ramps],
        )
        scale = {name: own[name][used] for name in ("scale.mean", "scale.factor")}
        self._static, self._changing = (
            NetworkInputs.of(columns[used], scale, ramps, first=first, stop=stop)
            for first, stop in ((0, len(STATIC)), (len(STATIC), len(COLUMNS)))
        )
        bias = own["input.bias"][None]
        self._of_static = Layer.of(rows[None, self._static.inputs])
        self._of_changing = Layer.of(rows[None, self._changing.inputs], bias)
        layers = sum(name.startswith("own.") and name.endswith(".weight") for name in own)
        self._layers = [
            Layer.of(own[f"{name}.weight"].T[None], own[f"{name}.bias"][None])
            for name in (*(f"own.{layer}" for layer in range(layers)), "output")
        ]
        # Sizes that do not fit raise here, and not when the first model is asked for.
        of_nothing = self._finish(np.maximum(bias, 0.0)[None, :, None])
        if not (np.isfinite(of_nothing).all() and all(np.isfinite(v).all() for v in (rows, *scale.values()))):
            raise ValueError("its weights are no numbers")

    def prepare(self, physical: PhysicalPlan) -> PreparedConvolutions:
        """Work out what depends on neither batch nor device."""
        (chosen,) = np.nonzero(physical.static[:, AT["is_conv"]] > 0.0)
        _, places, number = np.unique(physical.static_number[chosen], return_index=True, return_inverse=True)
        static = self._static.expand(self._static.scale(physical.static.take(chosen[places], axis=0)))
        first = multiply(static[None], self._of_static)[0]
        return PreparedConvolutions(chosen=chosen, first=first, number=number)

    def factors(self, sample: PhysicalSamples, prepared: PreparedConvolutions) -> FloatArray:
        """What the kernel time of each convolution is to be multiplied by at each batch, [B, K]."""
        changing = self._changing.scale(sample.changing.take(prepared.chosen, axis=1))
        return self._finish(begin(self._changing.expand(changing), self._of_changing, prepared.first, prepared.number))

    def _finish(self, values: Float32Array) -> FloatArray:
        """The factors by what is positive of what the first layer makes of convolutions, [B, 1, K, W] to [B, K]."""
        *own, last = self._layers
        for layer in own:
            values += np.maximum(multiply(values, layer), 0.0)
        logarithm = _BOUND * np.tanh(multiply(values, last)[:, 0, :, 0] / _BOUND)
        result: FloatArray = np.exp(logarithm.astype(np.float64))
        return result
