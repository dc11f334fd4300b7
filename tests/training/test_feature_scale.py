from __future__ import annotations

from dataclasses import replace

import numpy as np

from dippm.features.physical.columns import AT
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.feature_scale import FeatureScale


def test_columns_without_spread_say_nothing(step_samples: AdditiveSamples) -> None:
    scale = FeatureScale.fit(step_samples, step_samples.usable)
    assert (scale.factor == 0).any()
    strange = np.full((1, len(scale.mean)), 1e6, dtype=np.float32)
    scaled = scale.apply(strange)[0]
    assert not scaled[scale.factor == 0].any()
    assert np.abs(scaled).max() <= 4.0


def test_kinds_that_the_training_lacked_keep_the_plain_time(step_samples: AdditiveSamples) -> None:
    scale = FeatureScale.fit(step_samples, step_samples.usable)
    features = step_samples.arrays.node_features[:3].copy()
    kinds = [place for name, place in AT.items() if name.startswith("is_")]
    features[:, kinds] = 0.0
    features[0, AT["is_conv"]] = features[1, AT["is_fft"]] = 1.0
    assert scale.is_unseen(features).tolist() == [False, True, False]
    # What every operator of a training is says as little, and is known.
    always = replace(scale, mean=np.ones_like(scale.mean), factor=np.zeros_like(scale.factor))
    assert not always.is_unseen(features).any()


def test_a_scale_of_samples_is_that_of_their_nodes(step_samples: AdditiveSamples) -> None:
    chosen, arrays = step_samples.usable[1:3], step_samples.arrays
    nodes = np.concatenate([np.arange(*arrays.node_offsets[row : row + 2]) for row in chosen])
    features = arrays.node_features[nodes]
    one = FeatureScale.fit(step_samples, chosen, ("rows",), ramps=3)
    other = FeatureScale.of_nodes(features, ("rows",), ramps=3)
    assert np.array_equal(one.inputs(features), other.inputs(features))
    assert one.factor[AT["rows"]] == 0.0
    assert one.inputs(features).shape[1] == features.shape[1] + len(one.ramps) > features.shape[1]
