from __future__ import annotations

import numpy as np
import pytest

from dippm.features.physical.columns import COLUMNS
from dippm.training.additive_ablation import ABLATIONS, predict_by_trees
from dippm.training.additive_labels import random_parts
from dippm.training.additive_samples import AdditiveSamples


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_is_left_out_is_a_copy_with_a_key_of_its_own(step_samples: AdditiveSamples, name: str) -> None:
    before = step_samples.arrays.node_features.copy()
    without = ABLATIONS[name](step_samples)
    assert without.key != step_samples.key
    assert (step_samples.arrays.node_features == before).all()
    assert without.measured_ms.tolist() == step_samples.measured_ms.tolist()


def test_without_messages_no_operator_knows_its_neighbours(step_samples: AdditiveSamples) -> None:
    assert step_samples.arrays.producer_weight.any()
    arrays = ABLATIONS["without messages between operators"](step_samples).arrays
    assert not arrays.producer_weight.any()
    assert not arrays.consumer_weight.any()


def test_without_the_device_the_operators_stay(step_samples: AdditiveSamples) -> None:
    features = ABLATIONS["without device features"](step_samples).arrays.node_features
    assert not features[:, COLUMNS.index("waves")].any()
    kept = [place for place, column in enumerate(COLUMNS) if column.startswith("is_")]
    assert (features[:, kept] == step_samples.arrays.node_features[:, kept]).all()


def test_the_roofline_is_the_larger_of_arithmetic_and_traffic(step_samples: AdditiveSamples) -> None:
    plain = ABLATIONS["without kernel costs (roofline instead)"](step_samples).arrays
    uses = step_samples.arrays.node_features[:, [COLUMNS.index("compute_use"), COLUMNS.index("memory_use")]]
    np.testing.assert_allclose(plain.kernel_ms, step_samples.arrays.kernel_ms * np.exp(uses).max(axis=1), rtol=1e-4)


def test_trees_learn_the_correction_of_the_plain_sum(step_samples: AdditiveSamples) -> None:
    pytest.importorskip("lightgbm")
    training, _, test = random_parts(step_samples, seed=0)
    predicted = predict_by_trees(step_samples, training, test, seed=0)
    again = predict_by_trees(step_samples, training, test, seed=0)
    assert predicted.tolist() == again.tolist()
    assert predicted.shape == test.shape

    def error(milliseconds: np.ndarray) -> float:
        return float(np.abs(np.log(milliseconds / step_samples.measured_ms[test])).mean())

    assert error(predicted) < error(step_samples.plain_ms()[test])
