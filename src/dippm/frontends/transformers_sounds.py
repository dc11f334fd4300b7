"""The sounds that a model of transformers is read with where the caller gives none, as spectrograms or as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dippm.frontends.inputs import InputEntry
from dippm.graph import DType

__all__ = ["sounds", "spectrograms"]

_Entries = Mapping[str, InputEntry]

_SAMPLING_RATE = 16000
_FRAMES = 3000  # thirty seconds
_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "feature_size", "input_dim")
_USUAL_BINS = (80, 128)
_PARTS = ("encoder_config", "audio_config")


def spectrograms(config: Any, parameters: Mapping[str, Any]) -> Iterator[_Entries]:
    """Half a minute of sound, in the orders that its bins and frames may have, with masks that leave nothing out.

    Args:
        config: The model's configuration.
        parameters: The arguments of its forward by name.
    """
    audio = next((part for name in _PARTS if (part := getattr(config, name, None)) is not None), config)
    stated = next((size for name in _BINS if isinstance(size := getattr(audio, name, None), int)), None)
    positions, spectrum = getattr(audio, "max_source_positions", None), getattr(audio, "spec_size", None)
    frames = 2 * int(positions) if positions else _FRAMES
    masks = [name for name in parameters if name.endswith("mask") and "feature" in name]
    for bins in _USUAL_BINS if stated is None else (stated,):
        shapes: list[tuple[int, ...]] = [(bins, frames), (frames, bins)]
        if isinstance(spectrum, int):  # it is folded into a square image
            shapes.insert(0, (1, spectrum * (spectrum // bins), bins))
        for shape in shapes:
            features = {"input_features": InputEntry(shape=shape)}
            yield features
            if masks:
                yield {**features, **{name: _whole(parameters[name], length=frames) for name in masks}}


def _whole(parameter: Any, *, length: int) -> InputEntry:
    dtype = DType.BOOL if "Bool" in str(parameter.annotation) else DType.INT64
    return InputEntry(shape=(length,), dtype=dtype, values=(1,) * length)


def sounds(config: Any) -> Iterator[_Entries]:
    """A spectrogram where the model has a size for it, else one second of sound, with or without its channels.

    Args:
        config: The model's configuration.
    """
    frames, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    if frames and bins:
        yield {"input_values": InputEntry(shape=(int(frames), int(bins)))}
        return
    samples = int(getattr(config, "sampling_rate", None) or _SAMPLING_RATE)
    channels = int(getattr(config, "audio_channels", None) or 1)
    for shape in ((samples,), (channels, samples)):
        yield {"input_values": InputEntry(shape=shape)}
