"""The small network behind every learned kernel time, as plain NumPy arrays.

A `Perceptron` maps features to ``log(time / baseline)``. It clips each feature to the range seen in training and its
result to the range of training labels, so that a problem far outside the tables is answered with the efficiency of the
nearest edge of the tables: its time stays finite and grows as the baseline's roofline does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.features import DEVICE_FEATURES
from dippm.costs.kernels.problems import FloatArray

__all__ = ["MEASURED", "TRANSFER", "Network", "Perceptron", "kept_columns", "nearest_support", "support_weight"]

Float32Array = npt.NDArray[np.float32]

#: The network for devices that were measured, or nearly so: it knows every device feature.
MEASURED = "measured"

#: The network for all other devices. Five devices can teach five identities at best, so it averages a few perceptrons
#: of which each sees only one or a few device features, blurred by noise.
TRANSFER = "transfer"

#: Device features that decide whether a device counts as measured.
_SUPPORT_FEATURES = (
    "log_sms",
    "log_flops_per_sm",
    "log_balance",
    "log_l2_per_sm",
    "log_shared_memory",
    "log_power_headroom",
    "has_unified_l1",
)
_SUPPORT_COLUMNS = [DEVICE_FEATURES.index(name) for name in _SUPPORT_FEATURES]

#: Euclidean distances (of logarithms) up to which a device counts as measured, and from which on it does not at all.
_NEAR, _FAR = 0.15, 0.6


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Perceptron:
    """A multilayer perceptron with SiLU activations.

    Args:
        columns: Columns of the family's feature matrix that it uses.
        low: Smallest value of each used feature in training.
        high: Largest value of each used feature in training.
        mean: Mean of each used feature in training.
        scale: Standard deviation of each used feature in training.
        weights: One matrix per layer, shape (inputs, outputs).
        biases: One vector per layer.
        lowest: Smallest result.
        highest: Largest result.
    """

    columns: npt.NDArray[np.int64]
    low: Float32Array
    high: Float32Array
    mean: Float32Array
    scale: Float32Array
    weights: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]
    lowest: float
    highest: float

    def log_ratio(self, matrix: Float32Array) -> FloatArray:
        """``log(time / baseline)`` for a feature matrix.

        Shapes: (problems, features) -> (problems,).
        """
        hidden = (np.clip(matrix[:, self.columns], self.low, self.high) - self.mean) / self.scale
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = hidden @ weight + bias
            if layer < last:
                hidden = hidden / (1.0 + np.exp(-np.clip(hidden, -60.0, 60.0)))
        return np.clip(hidden[:, 0].astype(np.float64), self.lowest, self.highest)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Network:
    """The mean of one or more perceptrons.

    Args:
        members: The perceptrons.
    """

    members: tuple[Perceptron, ...]

    def log_ratio(self, matrix: Float32Array) -> FloatArray:
        """``log(time / baseline)`` for a feature matrix.

        Shapes: (problems, features) -> (problems,).
        """
        return np.asarray(np.mean([member.log_ratio(matrix) for member in self.members], axis=0))


def kept_columns(
    total: int, *, without: Collection[int] = (), device_features: Sequence[str] = DEVICE_FEATURES
) -> npt.NDArray[np.int64]:
    """Columns of a feature matrix that a perceptron uses.

    Args:
        total: Columns of the matrix.
        without: Columns that it does not use.
        device_features: Device features that it uses.
    """
    first = total - len(DEVICE_FEATURES)
    own = [first + DEVICE_FEATURES.index(name) for name in device_features]
    return np.array([*(each for each in range(first) if each not in without), *own], dtype=np.int64)


def nearest_support(features: FloatArray, measured: FloatArray) -> int:
    """Position of the measured device that is most alike.

    Args:
        features: The device's features.
        measured: Features of the measured devices, shape (devices, features).
    """
    return int(np.argmin(_distances(features, measured)))


def support_weight(features: FloatArray, measured: FloatArray) -> float:
    """How far a device counts as measured: 1 for a measured one, 0 for one unlike all of them, between for relatives.

    Args:
        features: The device's features.
        measured: Features of the measured devices, shape (devices, features).
    """
    distance = float(np.min(_distances(features, measured)))
    return float(np.clip((_FAR - distance) / (_FAR - _NEAR), 0.0, 1.0))


def _distances(features: FloatArray, measured: FloatArray) -> FloatArray:
    difference = measured[:, _SUPPORT_COLUMNS] - features[_SUPPORT_COLUMNS]
    return np.asarray(np.sqrt(np.sum(difference * difference, axis=1)))
