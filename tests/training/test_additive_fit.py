from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dippm.errors import UsageError
from dippm.features.physical import COLUMNS, LAUNCH_MS
from dippm.features.physical.columns import AT
from dippm.models.additive import AdditiveNetwork
from dippm.training.additive_fit import AdditiveSettings, SampleTensors, fit_additive
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.feature_scale import FeatureScale


def test_operators_of_such_kinds_are_not_corrected(
    step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    fitted = fit_additive(step_samples, step_samples.usable, additive_settings)
    (row,) = chosen = step_samples.usable[:1]
    arrays = step_samples.arrays
    nodes = slice(int(arrays.node_offsets[row]), int(arrays.node_offsets[row + 1]))
    features = arrays.node_features.copy()
    features[nodes, AT["is_fft"]] = 1.0
    unseen = replace(step_samples, arrays=replace(arrays, node_features=features))
    plain_ms = (arrays.kernel_ms * arrays.count + arrays.launches * arrays.count * LAUNCH_MS)[nodes].sum()
    assert fitted.predict_ms(unseen, chosen) == pytest.approx([plain_ms], rel=1e-5)
    assert abs(fitted.predict_ms(step_samples, chosen)[0] / plain_ms - 1.0) > 1e-4


def test_training_lowers_the_error(step_samples: AdditiveSamples, additive_settings: AdditiveSettings) -> None:
    def error(epochs: int) -> float:
        settings = replace(additive_settings, epochs=epochs, members=1, width=16)
        predicted = fit_additive(step_samples, step_samples.usable, settings).predict_ms(
            step_samples, step_samples.usable
        )
        return float(np.abs(np.log(predicted / step_samples.measured_ms[step_samples.usable])).mean())

    assert error(40) < 0.5 * error(1)


def test_times_to_learn_go_before_measured_ones(
    step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    settings, chosen = replace(additive_settings, epochs=40, members=1, width=16), step_samples.usable
    doubled = replace(step_samples, learned_ms=2.0 * step_samples.measured_ms)
    plain, told = (fit_additive(samples, chosen, settings) for samples in (step_samples, doubled))
    ratio = told.predict_ms(step_samples, chosen) / plain.predict_ms(step_samples, chosen)
    assert np.median(ratio) == pytest.approx(2.0, rel=0.2)


def test_the_same_seed_gives_the_same_network(
    step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    chosen = step_samples.usable[:16]
    first, second = (fit_additive(step_samples, chosen, additive_settings) for _ in range(2))
    for one, other in zip(first.members, second.members, strict=True):
        for name, values in one.state_dict().items():
            assert torch.equal(values, other.state_dict()[name])
    assert not torch.equal(first.members[0].input.weight, first.members[1].input.weight)


def test_deaf_operators_hear_nothing_of_others(step_samples: AdditiveSamples) -> None:
    chosen = step_samples.usable[:4]
    batch = SampleTensors(step_samples, FeatureScale.fit(step_samples, chosen)).batch(chosen)
    torch.manual_seed(0)
    network = AdditiveNetwork(inputs=len(COLUMNS), width=16)
    torch.nn.init.normal_(network.output.weight)
    none = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    alone = replace(batch, producers=none, consumers=none).class_ms(network)
    heard, partly, deaf = (batch.class_ms(network, deaf=share) for share in (0.0, 0.5, 1.0))
    assert torch.allclose(deaf, alone)
    # In part each operator has one of both times, but for what it hears of those that are deaf.
    assert not torch.allclose(heard, alone)
    assert not torch.allclose(partly, heard)
    assert not torch.allclose(partly, alone)


@pytest.mark.parametrize("epochs", range(1, 8))
def test_the_shortest_trainings_learn(
    epochs: int, step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    # One step an epoch: with five of them the rising part of the cycle of rates is exactly empty.
    settings = replace(additive_settings, epochs=epochs, members=1)
    network = fit_additive(step_samples, step_samples.usable[:2], settings).members[0]
    torch.manual_seed(settings.seed)
    start = AdditiveNetwork(inputs=len(COLUMNS), width=settings.width, dropout=settings.dropout)
    pairs = zip(network.parameters(), start.parameters(), strict=True)
    assert max(float((new - old).detach().abs().max()) for new, old in pairs) > 1e-4


@pytest.mark.parametrize(("samples", "epochs"), [(0, 2), (2, 0)])
def test_a_training_without_a_step_is_refused(
    samples: int, epochs: int, step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    with pytest.raises(UsageError, match="nothing to learn from"):
        fit_additive(step_samples, step_samples.usable[:samples], replace(additive_settings, epochs=epochs))
