"""The additive networks for predictions without PyTorch, all members of an ensemble at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import LARGEST_CORRECTION
from dippm.predictors.network_steps import Layer, Neighbours, begin, listen, multiply

__all__ = ["Ensemble"]

FloatArray = npt.NDArray[np.float32]
_BOUND = np.float32(LARGEST_CORRECTION)


class Ensemble:
    """What :class:`dippm.models.additive.AdditiveNetwork` gives in evaluation mode, to float32's rounding.

    The first layer is linear in the features, so that the part of those that never change can be kept.

    Args:
        members: Each network's state by PyTorch's names, such as ``"own.0.weight"``; all are of one size.

    Raises:
        KeyError, ValueError, IndexError: They are no such networks'.
    """

    def __init__(self, members: Sequence[Mapping[str, FloatArray]]) -> None:
        def stack(name: str) -> FloatArray:
            return np.stack([np.ascontiguousarray(member[name].T) for member in members])

        rounds = sum(name.startswith("own.") and name.endswith(".weight") for name in members[0])
        self._input, self._input_bias = stack("input.weight"), stack("input.bias")
        # One product of all that an operator hears: the mean over weights is that of the means.
        self._rounds = [
            Layer.of(
                np.concatenate([stack(f"{name}.{step}.weight") for name in ("producers", "consumers", "own")], axis=1),
                stack(f"own.{step}.bias"),
            )
            for step in range(rounds)
        ]
        self._output = Layer.of(stack("output.weight"), stack("output.bias"))
        width = self._input.shape[2]
        sizes = [(3 * width, width)] * rounds + [(width, 2)]
        if [layer.weights.shape[1:] for layer in (*self._rounds, self._output)] != sizes:
            raise ValueError(f"layers do not go on with embeddings of {width} numbers")

    def first_layer(self, columns: IndexArray | slice = slice(None), *, has_bias: bool) -> Layer:
        """The first layer for some of the networks' inputs.

        Args:
            columns: The inputs.
            has_bias: Whether its bias is added here, and not beside other inputs.
        """
        return Layer.of(self._input[:, columns], self._input_bias if has_bias else None)

    def embed(self, features: FloatArray, layer: Layer) -> FloatArray:
        """The part of the first layer, without its bias, that some of the features make.

        Args:
            features: Scaled features, a row for each different set of them.
            layer: What :meth:`first_layer` gives for them, without bias.

        Shapes:
            features: [U, columns]; result: [M, U, W].
        """
        result: FloatArray = multiply(features[None], layer)[0]
        return result

    def corrections(
        self,
        features: FloatArray,
        layer: Layer,
        known: FloatArray,
        number: IndexArray,
        producers: Neighbours,
        consumers: Neighbours,
    ) -> FloatArray:
        """Logarithms of both corrections of each operator by each member.

        Args:
            features: Scaled features of the operators at each batch, those that :meth:`embed` was not given.
            layer: What :meth:`first_layer` gives for them, with its bias.
            known: What :meth:`embed` gave for the others.
            number: Which row of these each operator has.
            producers: Whom each operator reads from.
            consumers: Who reads from each operator.

        Shapes:
            features: [B, N, columns]; known: [M, U, W]; number: [N]; result: [B, M, N, 2].
        """
        values = begin(features, layer, known, number)
        for layer_of_round in self._rounds:
            values = listen(values, producers, consumers, layer_of_round)
        result: FloatArray = _BOUND * np.tanh(multiply(values, self._output) / _BOUND)
        return result
