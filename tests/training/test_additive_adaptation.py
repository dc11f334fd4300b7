from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dippm.training.additive_adaptation import AdaptationSettings, adapt_additive, choose_diverse
from dippm.training.additive_fit import AdditiveSettings, FittedAdditive, fit_additive
from dippm.training.additive_samples import AdditiveSamples


@pytest.fixture(name="fitted", scope="module")
def _fitted(step_samples: AdditiveSamples, additive_settings: AdditiveSettings) -> FittedAdditive:
    return fit_additive(step_samples, step_samples.usable[:20], additive_settings)


def _error(fitted: FittedAdditive, samples: AdditiveSamples, chosen: np.ndarray) -> float:
    return float(np.abs(np.log(fitted.predict_ms(samples, chosen) / samples.measured_ms[chosen])).mean())


def test_a_few_samples_of_a_slower_device_are_learned(fitted: FittedAdditive, step_samples: AdditiveSamples) -> None:
    slower = replace(step_samples, measured_ms=3.0 * step_samples.measured_ms)
    chosen = step_samples.usable[20:28]
    before = [values.clone() for network in fitted.members for values in network.parameters()]
    adapted = adapt_additive(fitted, slower, chosen, AdaptationSettings(steps=60, rate=1e-2, pull=1e-4))
    assert _error(adapted, slower, chosen) < 0.7 * _error(fitted, slower, chosen)
    # The networks that were given stay as they were.
    after = [values for network in fitted.members for values in network.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert adapted.scale is fitted.scale


def test_a_strong_pull_keeps_the_weights(fitted: FittedAdditive, step_samples: AdditiveSamples) -> None:
    slower = replace(step_samples, measured_ms=3.0 * step_samples.measured_ms)
    chosen = step_samples.usable[20:28]

    def moved(pull: float) -> float:
        adapted = adapt_additive(fitted, slower, chosen, AdaptationSettings(steps=40, pull=pull))
        pairs = zip(fitted.members[0].parameters(), adapted.members[0].parameters(), strict=True)
        return sum(float((one - other).detach().square().sum()) for one, other in pairs)

    assert moved(10.0) < 0.5 * moved(0.0)


def test_the_same_seed_adapts_alike(fitted: FittedAdditive, step_samples: AdditiveSamples) -> None:
    chosen = step_samples.usable[20:28]
    one, same, other = (
        adapt_additive(fitted, step_samples, chosen, AdaptationSettings(steps=5, batch_size=2, seed=seed))
        .predict_ms(step_samples, chosen)
        .tolist()
        for seed in (0, 0, 1)
    )
    assert one == same != other


def test_samples_stand_for_their_clusters() -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(0)
    middles = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    descriptors = (np.repeat(middles, 8, axis=0) + 0.1 * random.normal(size=(24, 2))).astype(np.float32)
    pool = np.arange(24)
    chosen = choose_diverse(descriptors, pool, count=3)
    assert sorted((chosen // 8).tolist()) == [0, 1, 2]
    assert choose_diverse(descriptors, pool, count=3).tolist() == chosen.tolist()
    # Of a pool smaller than what is asked for, all are chosen; and none from outside.
    assert choose_diverse(descriptors, pool[5:9], count=99).tolist() == [5, 6, 7, 8]
