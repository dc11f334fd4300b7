import numpy as np
import pytest

from dippm.costs.kernels.features import DEVICE_FEATURES
from dippm.costs.kernels.network import (
    Network,
    Perceptron,
    kept_columns,
    nearest_support,
    support_weight,
)


def _perceptron(**changes: float) -> Perceptron:
    return Perceptron(
        columns=np.array([0, 2]),
        low=np.array([-1, -1], dtype=np.float32),
        high=np.array([1, 1], dtype=np.float32),
        mean=np.zeros(2, dtype=np.float32),
        scale=np.ones(2, dtype=np.float32),
        weights=(np.eye(2, dtype=np.float32), np.ones((2, 1), dtype=np.float32)),
        biases=(np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.float32)),
        lowest=changes.get("lowest", -9.0),
        highest=changes.get("highest", 9.0),
    )


def test_it_is_a_silu_perceptron_on_its_columns() -> None:
    silu = 0.5 / (1 + np.exp(-0.5)) + -0.25 / (1 + np.exp(0.25))
    result = _perceptron().log_ratio(np.array([[0.5, 99.0, -0.25]], dtype=np.float32))
    assert result[0] == pytest.approx(silu, rel=1e-6)


def test_inputs_and_results_stay_in_the_range_of_training() -> None:
    edge, beyond = _perceptron().log_ratio(np.array([[1, 0, 1], [1e9, 0, 1e9]], dtype=np.float32))
    assert edge == beyond
    assert _perceptron(highest=0.1).log_ratio(np.array([[1, 0, 1]], dtype=np.float32))[0] == pytest.approx(0.1)


def test_a_network_is_the_mean_of_its_members() -> None:
    matrix = np.array([[0.5, 0, 0.5]], dtype=np.float32)
    both = Network(members=(_perceptron(), _perceptron(highest=0.0)))
    assert both.log_ratio(matrix)[0] == pytest.approx(_perceptron().log_ratio(matrix)[0] / 2)


def test_columns_leave_out_sizes_and_device_features() -> None:
    total = 7 + len(DEVICE_FEATURES)
    assert kept_columns(total).tolist() == list(range(total))
    assert kept_columns(total, without={0, 1}, device_features=[DEVICE_FEATURES[3]]).tolist() == [2, 3, 4, 5, 6, 10]


def test_support_is_full_at_a_measured_device_and_fades_with_distance() -> None:
    measured = np.zeros((2, len(DEVICE_FEATURES)))
    measured[1] += 5.0
    near = np.zeros(len(DEVICE_FEATURES))
    weights = [support_weight(near + step, measured) for step in (0.0, 0.1, 0.15, 0.2, 1.0)]
    assert weights[0] == 1.0
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == 0.0
    assert nearest_support(near + 4.0, measured) == 1
