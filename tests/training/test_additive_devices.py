from __future__ import annotations

import numpy as np

from dippm.training.additive_devices import leave_out_device
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_labels import device_parts
from dippm.training.additive_samples import AdditiveSamples


def test_a_device_is_predicted_before_and_after_some_of_its_labels(
    two_devices: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    device = "GeForce RTX 3090"
    left = leave_out_device(two_devices, additive_settings, device=device, labels=(3,))
    _, _, test = device_parts(two_devices, device=device, seed=additive_settings.seed)
    assert left.device == device
    assert left.test.tolist() == test.tolist()
    assert left.plain_ms.tolist() == two_devices.plain_ms()[test].tolist()
    assert list(left.adapted_ms) == [3]
    for predicted in (left.zero_shot_ms, *left.adapted_ms.values()):
        assert predicted.shape == test.shape
        assert (predicted > 0).all()
    assert not np.array_equal(left.adapted_ms[3], left.zero_shot_ms)
    assert (left.distance >= 0).all()
