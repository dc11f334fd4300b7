"""The network of convolutions on made-up samples whose convolutions follow a rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from dippm.features.physical.columns import AT
from dippm.training.additive_fit import AdditiveSettings, fit_additive
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.convolution_fit import FittedConvolutions, _Convolutions, fit_convolutions
from dippm.training.traced_operators import TracedOperators


def _times(samples: AdditiveSamples) -> np.ndarray:
    """Convolutions take three times what the plain sum says, those of many rows five times."""
    features = samples.arrays.node_features
    is_convolution, rows = features[:, AT["is_conv"]] > 0.0, features[:, AT["rows"]]
    is_long = rows > np.median(rows[is_convolution])
    return samples.arrays.kernel_ms * np.where(is_convolution, np.where(is_long, 5.0, 3.0), 1.0)


@pytest.fixture(name="traced_samples", scope="module")
def _traced_samples(step_samples: AdditiveSamples) -> AdditiveSamples:
    offsets, times = step_samples.arrays.node_offsets, _times(step_samples)
    every = np.concatenate([np.arange(count) for count in np.diff(offsets)])
    totals = np.add.reduceat(times, offsets[:-1])
    traced = TracedOperators(
        operator=every,
        group=every,
        member_offsets=offsets,
        log_ms=np.log(np.maximum(times, 1e-9)).astype(np.float32),
        share=(times / np.repeat(totals, np.diff(offsets))).astype(np.float32),
        group_offsets=offsets,
    )
    return replace(step_samples, traced=traced)


def _fit(samples: AdditiveSamples, chosen: np.ndarray, *, epochs: int = 300) -> FittedConvolutions:
    assert samples.traced is not None
    return fit_convolutions(samples, samples.traced, chosen, epochs=epochs, passed_over=("rows_by_8",))


def test_it_learns_what_convolutions_take_and_leaves_all_others(traced_samples: AdditiveSamples) -> None:
    corrected = _fit(traced_samples, traced_samples.usable).correct(traced_samples)
    is_convolution = traced_samples.arrays.node_features[:, AT["is_conv"]] > 0.0
    found = corrected.arrays.kernel_ms / traced_samples.arrays.kernel_ms
    assert is_convolution.sum() > 10
    assert np.all(found[~is_convolution] == 1.0)
    wanted = (_times(traced_samples) / traced_samples.arrays.kernel_ms)[is_convolution]
    assert len(set(np.round(wanted).tolist())) == 2
    assert np.median(np.abs(np.log(found[is_convolution] / wanted))) < 0.1


def test_what_is_passed_over_and_what_does_not_vary_is_not_read(traced_samples: AdditiveSamples) -> None:
    fitted = _fit(traced_samples, traced_samples.usable, epochs=1)
    assert AT["rows_by_8"] not in fitted.inputs
    assert AT["is_conv"] not in fitted.inputs
    assert AT["rows"] in fitted.inputs
    assert fitted.inputs.max() >= traced_samples.arrays.node_features.shape[1]  # ramps


def test_convolutions_of_calls_count_by_their_share_and_those_alone_all_alike(traced_samples: AdditiveSamples) -> None:
    traced, chosen = traced_samples.traced, traced_samples.usable
    assert traced is not None
    called = _Convolutions.of(traced_samples, traced, chosen).weight
    alone = _Convolutions.of(replace(traced_samples, layers=chosen), traced, chosen).weight
    is_convolution = traced_samples.arrays.node_features[:, AT["is_conv"]] > 0.0
    assert called.tolist() == pytest.approx((np.minimum(traced.share[is_convolution], 0.1) + 0.004).tolist())
    assert alone.tolist() == pytest.approx([0.024] * len(called))


def test_convolutions_that_a_trace_does_not_tell_apart_are_passed_over(traced_samples: AdditiveSamples) -> None:
    traced, chosen = traced_samples.traced, traced_samples.usable[:1]
    assert traced is not None
    together = replace(traced, group=np.zeros_like(traced.group))
    assert len(_Convolutions.of(traced_samples, traced, chosen).weight) > 0
    assert len(_Convolutions.of(traced_samples, together, chosen).weight) == 0


def test_networks_of_calls_correct_what_it_says(traced_samples: AdditiveSamples) -> None:
    settings = AdditiveSettings(members=1, epochs=2, convolution_epochs=200)
    samples = replace(traced_samples, layers=traced_samples.usable[-2:])
    fitted = fit_additive(samples, samples.usable, settings)
    assert fitted.convolutions is not None
    alone = fit_additive(samples, samples.usable[:-2], settings)
    assert alone.convolutions is not None
    one, other = (each.convolutions.network.output.weight for each in (fitted, alone) if each.convolutions)
    # The network of convolutions learnt from the layers too, the others' scale is that of the calls.
    assert not np.array_equal(one.detach().numpy(), other.detach().numpy())
    assert np.array_equal(fitted.scale.mean, alone.scale.mean)
    without = replace(fitted, convolutions=None)
    assert not np.allclose(fitted.predict_ms(samples, samples.usable), without.predict_ms(samples, samples.usable))
    assert fit_additive(samples, samples.usable, replace(settings, convolution_epochs=0)).convolutions is None
