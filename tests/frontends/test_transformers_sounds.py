"""The sounds of models of transformers, from configurations without a model."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

from dippm.frontends.transformers_sounds import sounds, spectrograms
from dippm.graph import DType

_NONE: dict[str, Any] = {"input_features": None}


def test_a_spectrogram_lies_in_either_order() -> None:
    config = SimpleNamespace(num_mel_bins=12, max_source_positions=50)
    assert [way["input_features"].shape for way in spectrograms(config, _NONE)] == [(12, 100), (100, 12)]


def test_bins_that_no_one_names_are_the_usual_ones() -> None:
    shapes = [way["input_features"].shape for way in spectrograms(SimpleNamespace(), _NONE)]
    assert shapes == [(80, 3000), (3000, 80), (128, 3000), (3000, 128)]


def test_masks_leave_nothing_out() -> None:
    def forward(input_features: Any, input_features_mask: "torch.BoolTensor", attention_mask: Any) -> None:  # noqa: F821, UP037
        pass

    config = SimpleNamespace(audio_config=SimpleNamespace(num_mel_bins=4, max_source_positions=5))
    ways = list(spectrograms(config, inspect.signature(forward).parameters))
    assert [len(way) for way in ways] == [1, 2, 1, 2]
    mask = ways[1]["input_features_mask"]
    assert (mask.shape, mask.dtype, mask.values) == ((10,), DType.BOOL, (1,) * 10)


def test_a_spectrogram_may_be_folded_into_a_square() -> None:
    config = SimpleNamespace(num_mel_bins=16, spec_size=64)
    assert next(iter(spectrograms(config, _NONE)))["input_features"].shape == (1, 256, 16)


def test_one_second_of_sound_has_the_samples_of_its_rate() -> None:
    config = SimpleNamespace(sampling_rate=24000, audio_channels=2)
    assert [way["input_values"].shape for way in sounds(config)] == [(24000,), (2, 24000)]
    assert next(sounds(SimpleNamespace()))["input_values"].shape == (16000,)
    spectrogram = SimpleNamespace(max_length=64, num_mel_bins=8)
    assert [way["input_values"].shape for way in sounds(spectrogram)] == [(64, 8)]
