from __future__ import annotations

import numpy as np
import pytest

from dippm.features.physical.columns import AT, COLUMNS, STATIC
from dippm.features.physical.ramps import RAMPED, Ramps


def _features(**columns: list[float]) -> np.ndarray:
    result = np.zeros((len(next(iter(columns.values()))), len(COLUMNS)), dtype=np.float32)
    for name, values in columns.items():
        result[:, AT[name]] = values
    return result


def test_ramps_follow_each_other_through_the_quantiles_of_what_has_a_size() -> None:
    # 0 stands for an operator without channels.
    features = _features(in_channels=[0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 9.0])
    ramps = Ramps.fit(features, features, steps=4)
    assert ramps.column.tolist() == [AT["in_channels"]] * 4
    assert ramps.start.tolist() == [1.0, 2.0, 3.0, 5.0]
    assert ramps.length.tolist() == [1.0, 1.0, 2.0, 4.0]
    assert ramps.of(_features(in_channels=[0.5, 1.5, 4.0, 100.0])).tolist() == [
        [0.0, 0.0, 0.0, 0.0],
        [0.5, 0.0, 0.0, 0.0],
        [1.0, 1.0, 0.5, 0.0],
        [1.0, 1.0, 1.0, 1.0],
    ]


@pytest.mark.parametrize(("values", "steps"), [([0.0, 0.0], 4), ([3.0, 3.0], 4), ([1.0, 2.0], 0)])
def test_what_does_not_vary_has_no_ramp(values: list[float], steps: int) -> None:
    features = _features(rows=values)
    ramps = Ramps.fit(features, features, steps=steps)
    assert len(ramps) == 0
    assert ramps.of(features).shape == (2, 0)
    assert ramps.tensors() == {}


def test_an_artefact_holds_ramps_as_they_are() -> None:
    features = _features(rows=[1.0, 2.0, 4.0], in_channels=[1.0, 5.0, 6.0])
    ramps = Ramps.fit(features, features, steps=2)
    again = Ramps.from_tensors(ramps.tensors())
    assert len(again) == 4
    assert again.of(features).tolist() == ramps.of(features).tolist()
    assert len(Ramps.from_tensors({})) == 0


def test_sizes_with_ramps_are_columns_that_change_and_columns_that_do_not() -> None:
    assert set(RAMPED) <= set(COLUMNS)
    assert set(RAMPED) & set(STATIC)
    assert set(RAMPED) - set(STATIC)
