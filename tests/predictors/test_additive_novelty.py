from __future__ import annotations

import numpy as np
import pytest

from dippm.errors import DippmError
from dippm.predictors.additive_novelty import Novelty, describe_calls


@pytest.fixture(name="novelty")
def _novelty() -> Novelty:
    """Three calls, told apart by the first of three features alone."""
    return Novelty(
        mean=np.array([1.0, 1.0, 1.0], np.float32),
        basis=np.array([[1.0], [0.0], [0.0]], np.float32),
        known=np.array([[0.0], [2.0], [5.0]], np.float32),
        distances=np.array([0.5, 1.0, 2.0]),
        half_widths=np.array([0.1, 0.2, 0.6]),
    )


def test_the_distance_is_to_the_nearest(novelty: Novelty) -> None:
    calls = np.array([[1, 0, 0], [3.5, 9, 9], [7, 1, 1], [-2, 1, 1]], np.float32)
    assert novelty.distance(calls) == pytest.approx([0, 0.5, 1, 3], abs=1e-3)


def test_the_half_width_grows_with_the_distance(novelty: Novelty) -> None:
    distance = np.array([0.0, 0.5, 0.75, 1.5, 2.0, 4.0])
    assert novelty.half_width(distance) == pytest.approx([0.1, 0.1, 0.15, 0.4, 0.6, 1.2])


def test_tensors_there_and_back(novelty: Novelty) -> None:
    tensors = novelty.tensors()
    again = Novelty.from_tensors(tensors, distances=novelty.distances, half_widths=novelty.half_widths)
    calls = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert again.distance(calls).tolist() == novelty.distance(calls).tolist()
    del tensors["novelty.basis"]
    with pytest.raises(DippmError, match=r"novelty\.basis") as caught:
        Novelty.from_tensors(tensors, distances=[1.0], half_widths=[0.1])
    assert caught.value.code == "artefact.unreadable"
    with pytest.raises(DippmError, match="cannot be read") as caught:
        Novelty.from_tensors(tensors | {"novelty.basis": np.zeros(3)}, distances=[1.0], half_widths=[0.1])
    assert caught.value.code == "artefact.unreadable"


def test_a_call_is_the_mean_of_its_operators_by_time() -> None:
    features = np.array([[[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]]], np.float32)
    time_ms = np.array([[3.0, 1.0, 0.0], [1.0, 1.0, 2.0]])
    assert describe_calls(features, time_ms) == pytest.approx(np.array([[0.75, 0.25], [2.25, 2.25]]))
    # Twice the time is the same call.
    assert describe_calls(features, 2 * time_ms).tolist() == describe_calls(features, time_ms).tolist()
    assert describe_calls(features, 0 * time_ms).tolist() == [[0.0, 0.0]] * 2
