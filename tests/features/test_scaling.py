"""Scaling learned from training data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dippm.features.scaling import Scaling

NODES = np.array([[0.0, 2.0], [4.0, 2.0], [2.0, 2.0]], dtype=np.float32)
STATICS = np.array([[0.0, 1.0], [math.e**2 - 1, 1.0]])
TARGETS = np.array([[1.0, math.e, math.nan], [math.e**4, math.nan, math.nan]])


@pytest.fixture(name="scaling")
def _scaling():
    return Scaling.fit(NODES, STATICS, TARGETS)


def test_by_hand(scaling):
    np.testing.assert_allclose(scaling.node_mean, [2.0, 2.0])
    np.testing.assert_allclose(scaling.node_std, [math.sqrt(8 / 3), 1.0])
    np.testing.assert_allclose(scaling.static_mean, [1.0, math.log(2.0)])
    np.testing.assert_allclose(scaling.static_std, [1.0, 1.0])
    # A target without a value counts only where it has one; without any it is left as it is.
    np.testing.assert_allclose(scaling.target_mean, [2.0, 1.0, 0.0])
    np.testing.assert_allclose(scaling.target_std, [2.0, 1.0, 1.0])


def test_what_it_learned_from_comes_out_centred(scaling):
    nodes = scaling.scale_nodes(NODES)
    assert nodes.dtype == np.float32
    np.testing.assert_allclose(nodes, [[-math.sqrt(1.5), 0], [math.sqrt(1.5), 0], [0, 0]], rtol=1e-6)
    statics = scaling.scale_statics(STATICS)
    assert statics.dtype == np.float32
    np.testing.assert_allclose(statics, [[-1, 0], [1, 0]], atol=1e-6)
    targets = scaling.scale_targets(TARGETS)
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, [[-1, 0, np.nan], [1, np.nan, np.nan]], atol=1e-6)


def test_targets_come_back(scaling):
    values = np.array([[3.0, 0.02, 7e5], [1e-3, 44.0, 1.0]])
    np.testing.assert_allclose(scaling.unscale_targets(scaling.scale_targets(values)), values, rtol=1e-5)


def test_a_rare_class_stays_in_the_range_of_the_others():
    nodes = np.zeros((10_000, 2), dtype=np.float32)
    nodes[0, 0] = 1.0
    nodes[::2, 1] = 1.0
    scaling = Scaling.fit(nodes, STATICS, TARGETS)
    np.testing.assert_allclose(scaling.node_std, [0.1, 0.5])
    assert scaling.scale_nodes(nodes).max() == pytest.approx(10.0, rel=1e-3)


def test_through_json_without_loss(scaling):
    stored = json.loads(json.dumps(scaling.to_dict()))
    again = Scaling.from_dict(stored)
    for name in stored:
        np.testing.assert_array_equal(getattr(again, name), getattr(scaling, name))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"node_mean": None}, ValueError),
        ({"node_mean": "two"}, ValueError),
        ({"node_mean": 2.0}, ValueError),
        ({"node_mean": [1.0, math.nan]}, ValueError),
        ({"node_mean": {"a": 1}}, TypeError),
    ],
)
def test_what_it_did_not_write_is_refused(scaling, change, error):
    with pytest.raises(error):
        Scaling.from_dict(scaling.to_dict() | change)


def test_a_missing_column_is_refused(scaling):
    stored = scaling.to_dict()
    del stored["target_std"]
    with pytest.raises(KeyError, match="target_std"):
        Scaling.from_dict(stored)
