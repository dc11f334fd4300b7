"""Gaussian processes over the points of a space: what the figures of a model will be before it is built.

The kernel is the sum of a squared-exponential and a linear one that weigh every column by how much it matters. The
weights are those under which the known values are most likely (Rasmussen and Williams, 2006, sections 5.1 and 5.4),
found by a few steps of gradient descent from those of the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dippm.api.exploration.choices import Choice, Value

__all__ = ["GaussianProcess", "encode"]

FloatArray = npt.NDArray[np.float64]

_FIRST_STEPS, _LATER_STEPS = 60, 12
_RATE = 0.15
# Weights far from 1 / columns need values that speak for them: the spread of their logarithm before any is known.
_PRIOR_SPREAD = 2.0
_LEAST_NOISE = 1e-6
# A spread below it is that of values that are all the same.
_FLAT = 1e-12


def encode(choices: Sequence[Choice], points: Sequence[Mapping[str, Value]]) -> FloatArray:
    """Points as numbers: a column from -1 to 1 per number, one per category, and one for whether a choice is open.

    Shapes:
        returned: [points, columns].
    """
    columns: list[list[float]] = []
    for choice in choices:
        if choice.condition:
            columns.append([float(choice.name in point) for point in points])
        if not choice.options:
            middle, half = (choice.high + choice.low) / 2, max((choice.high - choice.low) / 2, _FLAT)
            values = [point.get(choice.name, middle) for point in points]
            columns.append([(float(value) - middle) / half for value in values])
            continue
        places = [choice.place(point[choice.name]) if choice.name in point else None for point in points]
        count = len(choice.options)
        if choice.is_ordered or count == 2:
            last = max(count - 1, 1)
            columns.append([0.0 if place is None else 2 * place / last - 1 for place in places])
        else:
            columns += [[float(place == option) for place in places] for option in range(count)]
    return np.array(columns, dtype=np.float64).T.reshape(len(points), -1)


class GaussianProcess:
    """A distribution over functions, given some of their values.

    Args:
        inputs: Where values are known.
        values: The values.
        start: Where the search for the best kernel starts: ``parameters`` of an earlier process; None for the first.

    Shapes:
        inputs: [n, columns]; values: [n], n at least 1.
    """

    def __init__(self, inputs: FloatArray, values: FloatArray, *, start: FloatArray | None = None) -> None:
        self._inputs = inputs
        self._mean, spread = float(values.mean()), float(values.std())
        self._spread = spread if spread > _FLAT else 1.0
        targets = (values - self._mean) / self._spread
        columns = inputs.shape[1]
        prior = np.concatenate([np.full(columns, -np.log(columns)), np.log([1.0, 1e-2])])
        #: Logarithms of the weight of each column, of the share of the linear kernel, and of the noise.
        self.parameters = prior.copy() if start is None else start.copy()
        self._descend(targets, prior, steps=_FIRST_STEPS if start is None else _LATER_STEPS)
        kernel = self._kernel(inputs, inputs) + self._noise * np.eye(len(inputs))
        self._inverse = np.linalg.inv(kernel)
        self._coefficients = self._inverse @ targets
        self._scale = max(float(targets @ self._coefficients) / len(inputs), _FLAT)

    @property
    def _noise(self) -> float:
        return float(np.exp(self.parameters[-1])) + _LEAST_NOISE

    def predict(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Expected values elsewhere, and their standard deviations.

        Shapes:
            inputs: [m, columns]; returned: [m] each.
        """
        kernel = self._kernel(inputs, self._inputs)
        weights, linear = np.exp(self.parameters[:-2]), np.exp(self.parameters[-2])
        own = 1.0 + linear * (inputs**2 @ weights)
        variance = np.maximum(own - ((kernel @ self._inverse) * kernel).sum(axis=1), 0.0) * self._scale
        return self._mean + self._spread * (kernel @ self._coefficients), self._spread * np.sqrt(variance)

    def _kernel(self, one: FloatArray, other: FloatArray) -> FloatArray:
        weighted = one * np.exp(self.parameters[:-2])
        products = weighted @ other.T
        squares = (weighted * one).sum(axis=1)[:, None] + (other**2 @ np.exp(self.parameters[:-2]))[None, :]
        curved = np.exp(-0.5 * np.maximum(squares - 2 * products, 0.0))
        return np.asarray(curved + np.exp(self.parameters[-2]) * products, dtype=np.float64)

    def _descend(self, targets: FloatArray, prior: FloatArray, *, steps: int) -> None:
        """Steps of Adam (Kingma and Ba, 2015) down the negative logarithm of the likelihood and the prior."""
        first, second = np.zeros_like(prior), np.zeros_like(prior)
        for step in range(1, steps + 1):
            slope = self._slope(targets) + (self.parameters - prior) / _PRIOR_SPREAD**2
            first = 0.9 * first + 0.1 * slope
            second = 0.99 * second + 0.01 * slope**2
            moved = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
            self.parameters = np.clip(self.parameters - _RATE * moved, -12.0, 4.0)

    def _slope(self, targets: FloatArray) -> FloatArray:
        """Derivatives of the negative log likelihood by the parameters, at the scale that is best for them."""
        inputs, count = self._inputs, len(self._inputs)
        weights, linear = np.exp(self.parameters[:-2]), np.exp(self.parameters[-2])
        products = (inputs * weights) @ inputs.T
        curved = self._kernel(inputs, inputs) - linear * products
        inverse = np.linalg.inv(curved + linear * products + self._noise * np.eye(count))
        solved = inverse @ targets
        gap = inverse - np.outer(solved, solved) * (count / max(float(targets @ solved), _FLAT))
        mixed = gap * curved
        distances = 2 * (inputs**2).T @ mixed.sum(axis=1) - 2 * (inputs * (mixed @ inputs)).sum(axis=0)
        by_weight = -0.5 * weights * distances + linear * weights * (inputs * (gap @ inputs)).sum(axis=0)
        by_linear, by_noise = linear * (gap * products).sum(), self._noise * np.trace(gap)
        return 0.5 * np.concatenate([by_weight, [by_linear, by_noise]])
