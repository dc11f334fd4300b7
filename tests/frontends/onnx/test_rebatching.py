from __future__ import annotations

import numpy as np
import pytest

from dippm.frontends.onnx.rebatching import Rebatching


@pytest.mark.parametrize(
    ("native", "current", "target", "grown"),
    [
        ((1, 197, 768), (3, 197, 768), (1, 197, 12, 64), (3, 197, 12, 64)),
        ((1, 12, 197, 64), (3, 12, 197, 64), (12, 197, 64), (36, 197, 64)),
        ((12, 197, 64), (36, 197, 64), (1, 12, 197, 64), (3, 12, 197, 64)),
        ((197, 1, 768), (197, 3, 768), (197, 12, 64), (197, 36, 64)),
        ((1, 56, 56, 96), (3, 56, 56, 96), (1, 8, 7, 8, 7, 96), (3, 8, 7, 8, 7, 96)),
        ((1, 8, 8, 7, 7, 96), (3, 8, 8, 7, 7, 96), (64, 49, 96), (192, 49, 96)),
        ((1, 512, 7, 7), (3, 512, 7, 7), (1, 25088), (3, 25088)),
    ],
)
def test_target_grows_where_the_batch_stands(native, current, target, grown) -> None:
    assert Rebatching(1, 3).reshape(native, current, target) == grown


def test_native_batch_above_one() -> None:
    assert Rebatching(4, 6).reshape((4, 10, 8), (6, 10, 8), (40, 8)) == (60, 8)


def test_input_without_the_batch_is_left_alone() -> None:
    assert Rebatching(1, 3).reshape((7, 8), (7, 8), (56,)) is None
    assert Rebatching(1, 3).reshape((7, 8), (14, 24), (56,)) is None


def test_other_readings_can_be_chosen() -> None:
    first = Rebatching(1, 3)
    first.reshape((10, 64), (30, 64), (10, 1, 64))
    signature = next(iter(first.alternatives))
    assert first.alternatives[signature] > 1
    results = {
        Rebatching(1, 3, {signature: choice}).reshape((10, 64), (30, 64), (10, 1, 64))
        for choice in range(first.alternatives[signature])
    }
    assert (10, 3, 64) in results


def test_expansion_follows_its_input() -> None:
    assert Rebatching(2, 3).scale_like((2, 1, 5), (3, 1, 5), (2, 4, 5)) == (3, 4, 5)


def test_a_value_that_the_batch_is_written_into() -> None:
    rebatching = Rebatching(2, 3, held={7: 1})
    assert rebatching.held_shape(7, (5, 2, 4)) == (5, 3, 4)
    assert rebatching.held_shape(8, (5, 2, 4)) is None
    same = rebatching.held_data(7, np.zeros((5, 2)))
    assert same is not None
    assert same.shape == (5, 3)
    assert rebatching.held_data(7, np.array([[1, 2]])) is None
