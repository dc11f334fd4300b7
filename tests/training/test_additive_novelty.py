from __future__ import annotations

import numpy as np
import pytest

from dippm.training.additive_novelty import describe_samples, find_neighbours, fit_half_widths, with_half_widths
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.feature_scale import FeatureScale


def test_a_descriptor_is_of_its_own_sample(step_samples: AdditiveSamples) -> None:
    descriptors = describe_samples(step_samples, FeatureScale.fit(step_samples, step_samples.usable))
    assert descriptors.shape == (len(step_samples), step_samples.arrays.node_features.shape[1])
    assert np.isfinite(descriptors).all()
    assert len(np.unique(descriptors, axis=0)) > len(step_samples) // 3


def test_what_was_trained_on_is_at_no_distance(step_samples: AdditiveSamples) -> None:
    descriptors = describe_samples(step_samples, FeatureScale.fit(step_samples, step_samples.usable))
    training = np.arange(10)
    neighbours = find_neighbours(descriptors, training)
    assert neighbours.distance(descriptors[training]) == pytest.approx(np.zeros(10), abs=1e-3)
    strange = descriptors[:1] + 5.0
    assert neighbours.distance(strange)[0] > neighbours.distance(descriptors).max()


def test_half_widths_rise_with_the_distance_and_hold_for_nine_of_ten() -> None:
    random = np.random.default_rng(0)
    distance = random.random(2000)
    score = np.abs(random.normal(size=2000)) * (0.05 + distance)
    middle, width = fit_half_widths(distance, score)
    assert len(middle) == len(width) == 8
    assert (np.diff(middle) > 0).all()
    assert (np.diff(width) >= 0).all()
    is_held = score <= np.interp(distance, middle, width)
    assert is_held.mean() == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(("rows", "bins"), [(5, 1), (99, 1), (100, 2), (149, 2), (1000, 8)])
def test_a_bin_has_fifty_rows(rows: int, bins: int) -> None:
    distance = np.arange(rows, dtype=np.float64)
    assert len(fit_half_widths(distance, distance)[0]) == bins


def test_neighbours_keep_what_they_know(step_samples: AdditiveSamples) -> None:
    descriptors = describe_samples(step_samples, FeatureScale.fit(step_samples, step_samples.usable))
    neighbours = find_neighbours(descriptors, np.arange(10))
    known = with_half_widths(neighbours, (np.array([0.0, 1.0]), np.array([0.1, 0.3])))
    assert known.known is neighbours.known
    assert known.half_width(np.array([0.5])) == pytest.approx([0.2])
