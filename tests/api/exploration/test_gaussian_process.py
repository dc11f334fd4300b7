"""Guesses between known values."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.api.exploration.choices import draw, parse_choices
from dippm.api.exploration.gaussian_process import GaussianProcess, encode


def test_points_as_numbers() -> None:
    choices = parse_choices(
        {
            "size": [1, 2, 5],
            "kind": ["a", "b", "c"],
            "switch": [False, True],
            "free": {"from": 2.0, "to": 4.0},
            "more": {"from": 1, "to": 3, "if": {"switch": True}},
        }
    )
    points = [
        {"size": 1, "kind": "b", "switch": False, "free": 3.0},
        {"size": 5, "kind": "c", "switch": True, "free": 4.0, "more": 3},
    ]
    assert encode(choices, points).tolist() == [
        [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ]


def test_a_product_of_some_choices_is_learned_and_the_others_are_left_aside() -> None:
    choices = parse_choices({f"c{number}": range(1, 9) for number in range(8)})
    generator = np.random.default_rng(0)
    points = [draw(choices, generator) for _ in range(260)]
    inputs = encode(choices, points)
    values = np.log([float(point["c0"]) * (3.0 + float(point["c1"]) * float(point["c2"])) for point in points])
    process = GaussianProcess(inputs[:160], values[:160])
    expected, spread = process.predict(inputs[160:])
    errors = values[160:] - expected
    assert errors.std() < 0.1 * values.std()
    # The spread that is claimed is that of the errors, within a factor of two.
    assert 0.5 < np.sqrt(((errors / spread) ** 2).mean()) < 2.0
    weights = process.parameters[:-2]
    assert weights[:3].min() > weights[3:].max()


def test_the_slope_is_that_of_the_likelihood() -> None:
    generator = np.random.default_rng(1)
    inputs, values = generator.uniform(-1, 1, (30, 4)), generator.normal(size=30)
    process = GaussianProcess(inputs, values)
    targets = (values - values.mean()) / values.std()

    def cost(parameters: np.ndarray) -> float:
        process.parameters = parameters
        kernel = process._kernel(inputs, inputs) + process._noise * np.eye(30)
        quadratic = targets @ np.linalg.solve(kernel, targets)
        return float(15 * np.log(quadratic) + 0.5 * np.linalg.slogdet(kernel)[1])

    at = generator.normal(size=6) * 0.3 - 1.0
    process.parameters = at
    slope = process._slope(targets)
    step = 1e-5
    for column in range(6):
        move = np.eye(6)[column] * step
        assert slope[column] == pytest.approx((cost(at + move) - cost(at - move)) / (2 * step), rel=1e-3, abs=1e-4)


def test_values_that_are_all_the_same() -> None:
    inputs = np.random.default_rng(2).uniform(-1, 1, (10, 3))
    expected, spread = GaussianProcess(inputs, np.full(10, 7.0)).predict(inputs)
    assert expected == pytest.approx(np.full(10, 7.0))
    assert np.isfinite(spread).all()
