"""A device that nobody measured: how far the additive network is off on it, before and after some tens of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.training.additive_adaptation import AdaptationSettings, adapt_additive, choose_diverse
from dippm.training.additive_fit import AdditiveSettings, fit_additive
from dippm.training.additive_labels import device_parts
from dippm.training.additive_novelty import describe_samples, find_neighbours
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["DeviceLeftOut", "leave_out_device"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeviceLeftOut:
    """Predictions of a device's rows by networks that were trained on the others.

    Args:
        device: The device.
        test: Its rows of models that no network was trained on.
        plain_ms: The plain sum, with rates fitted on the other devices.
        zero_shot_ms: Predictions without a label of the device.
        distance: How far each row is from what was trained on.
        adapted_ms: Predictions after adapting, once for each number of labels.
    """

    device: str
    test: IndexArray
    plain_ms: FloatArray
    zero_shot_ms: FloatArray
    distance: FloatArray
    adapted_ms: dict[int, FloatArray]


def leave_out_device(
    samples: AdditiveSamples, settings: AdditiveSettings, *, device: str, labels: Sequence[int]
) -> DeviceLeftOut:
    """Train on the other devices' rows of 80 % of the models; predict the device's rows of the other models.

    The labels to adapt with are of models that the networks were trained on, on the other devices.

    Args:
        samples: All samples, whose plain times owe nothing to the device: see ``rates`` of
            :func:`~dippm.training.additive_samples.build_additive_samples`.
        settings: Settings; their seed draws the parts.
        device: The device.
        labels: Numbers of labels to adapt with.
    """
    training, pool, test = device_parts(samples, device=device, seed=settings.seed)
    fitted = fit_additive(samples, training, settings)
    descriptors = describe_samples(samples, fitted.scale)
    adapted_ms = {}
    for count in labels:
        chosen = choose_diverse(descriptors, pool, count=count, seed=settings.seed)
        adapted = adapt_additive(fitted, samples, chosen, AdaptationSettings(seed=settings.seed))
        adapted_ms[count] = adapted.predict_ms(samples, test)
    return DeviceLeftOut(
        device=device,
        test=test,
        plain_ms=samples.plain_ms()[test],
        zero_shot_ms=fitted.predict_ms(samples, test),
        distance=find_neighbours(descriptors, training).distance(descriptors[test]),
        adapted_ms=adapted_ms,
    )
