from __future__ import annotations

import numpy as np

from dippm.features.physical import Ramps
from dippm.predictors.network_inputs import NetworkInputs

# Columns of an artefact that read the features 4, 1 and 6, and two ramps of its second and one of its third column.
_COLUMNS = np.array([4, 1, 6])
_SCALE = {
    "scale.mean": np.array([1.0, 2.0, 3.0], dtype=np.float32),
    "scale.factor": np.array([2.0, 0.0, 0.5], dtype=np.float32),
}
_RAMPS = Ramps(
    column=np.array([0, 0, 2]),
    start=np.array([0.0, 1.0, -1.0], dtype=np.float32),
    length=np.array([1.0, 2.0, 4.0], dtype=np.float32),
)


def test_inputs_of_some_features_have_their_own_ramps() -> None:
    low = NetworkInputs.of(_COLUMNS, _SCALE, _RAMPS, first=0, stop=5)
    assert low.features.tolist() == [4, 1]
    # The columns stand before the ramps among all inputs: these are the first two of three.
    assert low.inputs.tolist() == [0, 1, 3, 4]
    high = NetworkInputs.of(_COLUMNS, _SCALE, _RAMPS, first=5, stop=8)
    assert (high.features.tolist(), high.inputs.tolist()) == ([1], [2, 5])


def test_what_is_read_is_scaled_and_expanded() -> None:
    low = NetworkInputs.of(_COLUMNS, _SCALE, _RAMPS, first=0, stop=5)
    scaled = low.scale(np.array([[9.0, 7.0, 9.0, 9.0, 2.0], [9.0, 7.0, 9.0, 9.0, 100.0]], dtype=np.float32))
    assert scaled.tolist() == [[2.0, 0.0], [4.0, 0.0]]  # beyond four deviations nothing is further away
    assert low.expand(scaled).tolist() == [[2.0, 0.0, 1.0, 0.5], [4.0, 0.0, 1.0, 1.0]]
    plain = NetworkInputs.of(_COLUMNS, _SCALE, Ramps.none(), first=0, stop=5)
    assert plain.expand(scaled) is scaled
