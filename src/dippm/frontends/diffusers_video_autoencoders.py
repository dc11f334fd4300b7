"""The videos that autoencoders of diffusers are read with where the caller gives none: those of their pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from dippm.frontends.inputs import InputEntry

__all__ = ["VIDEO_AUTOENCODERS", "video_of"]

#: Frames, height and width of the video that the pipeline of a class makes by default.
VIDEO_AUTOENCODERS: Mapping[str, tuple[int, int, int]] = {
    "AutoencoderKLCogVideoX": (49, 480, 720),
    "AutoencoderKLCosmos": (121, 704, 1280),
    "AutoencoderKLHunyuanVideo": (129, 720, 1280),
    "AutoencoderKLLTX2Video": (121, 512, 768),
    "AutoencoderKLLTXVideo": (161, 512, 704),
    "AutoencoderKLMagvit": (49, 512, 512),
    "AutoencoderKLMochi": (19, 480, 848),
    "AutoencoderKLWan": (81, 480, 832),
}
# Of the three colours; the configurations of most speak of channels that the class has cut from them.
_CHANNELS = 3


def video_of(definition: str) -> Mapping[str, InputEntry]:
    """One video for each sample, whole: pipelines cut it into tiles only where they are told to.

    Args:
        definition: A class of :data:`VIDEO_AUTOENCODERS`.
    """
    return {"sample": InputEntry(shape=(_CHANNELS, *VIDEO_AUTOENCODERS[definition]))}
