"""The additive network on NumPy, for predictions where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from dippm.features.physical import LARGEST_CORRECTION, Messages

__all__ = ["corrections"]

FloatArray = npt.NDArray[np.float32]
_BOUND = np.float32(LARGEST_CORRECTION)
# Up to so many operators a product with the whole matrix of means is faster than gathering.
_LARGEST_MATRIX = 512


def corrections(
    weights: Mapping[str, FloatArray], features: FloatArray, producers: Messages, consumers: Messages
) -> FloatArray:
    """What :class:`dippm.models.additive.AdditiveNetwork` gives in evaluation mode, to float32's rounding.

    Args:
        weights: The network's state by PyTorch's names, such as ``"own.0.weight"``.
        features: Scaled features of one graph's operators at each batch.
        producers: Messages from producers, the same at each batch.
        consumers: Messages from consumers.

    Shapes:
        features: [B, N, inputs]; result: [B, N, 2], logarithms.
    """
    values = _relu(_linear(weights, "input", features))
    hear_producers, hear_consumers = (_means(messages, count=values.shape[1]) for messages in (producers, consumers))
    rounds = sum(name.startswith("own.") and name.endswith(".weight") for name in weights)
    for step in range(rounds):
        heard = hear_producers(values) @ weights[f"producers.{step}.weight"].T
        heard += hear_consumers(values) @ weights[f"consumers.{step}.weight"].T
        values = values + _relu(_linear(weights, f"own.{step}", values) + heard)
    result: FloatArray = _BOUND * np.tanh(_linear(weights, "output", values) / _BOUND)
    return result


def _linear(weights: Mapping[str, FloatArray], name: str, values: FloatArray) -> FloatArray:
    result: FloatArray = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _relu(values: FloatArray) -> FloatArray:
    result: FloatArray = np.maximum(values, 0.0)
    return result


def _means(messages: Messages, *, count: int) -> Callable[[FloatArray], FloatArray]:
    """What takes the mean over the neighbours of each of so many operators, 0 where there is none."""
    source, target, weight = messages.source, messages.target, messages.weight
    if count <= _LARGEST_MATRIX:
        matrix = np.zeros((count, count), dtype=np.float32)
        matrix[target, source] = weight
        return lambda values: matrix @ values
    # reduceat goes from each start to the next one; the targets ascend.
    starts = np.flatnonzero(np.r_[True, target[1:] != target[:-1]])

    def mean(values: FloatArray) -> FloatArray:
        result = np.zeros_like(values)
        result[:, target[starts]] = np.add.reduceat(values[:, source] * weight[:, None], starts, axis=1)
        return result

    return mean
