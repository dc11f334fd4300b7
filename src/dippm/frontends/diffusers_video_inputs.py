"""The inputs that models of videos of diffusers are read with where the caller gives none: a step of the pipeline.

The length and the size of the video are those that the class's pipeline makes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dippm.frontends.inputs import InputEntry
from dippm.graph import DType

__all__ = ["VIDEO_CLASSES"]

_Entries = Mapping[str, Any]

# Wan 2.1 and 2.2 make 81 frames of 480 x 832 pixels, four for one latent but for the first. The small Wan 2.2, which is
# known by its channels, makes 121 of 704 x 1280 with an autoencoder that takes 16 pixels together.
_WAN, _SMALL_WAN, _SMALL_WAN_CHANNELS = (21, 60, 104), (31, 44, 80), 48
_WAN_TOKENS, _CLIP_VISION_TOKENS = 512, 257
# 161 frames of 512 x 704, eight frames and 32 pixels for one latent.
_LTX, _LTX_TOKENS = (21, 16, 22), 128
# 129 frames of 720 x 1280.
_HUNYUAN, _HUNYUAN_TOKENS = (33, 90, 160), 256
# 19 frames of 480 x 848, six for one latent.
_MOCHI, _MOCHI_TOKENS = (4, 60, 106), 256
# 768 x 1360, for which CogVideoX 1.5 was made.
_COGVIDEO_1_5 = (96, 170)
# 121 frames of 704 x 1280, eight frames and eight pixels for one latent, 30 frames a second.
_COSMOS, _COSMOS_TOKENS, _COSMOS_RATE, _PIXELS_OF_LATENT = (16, 88, 160), 512, 30, 8
# 121 frames of 512 x 768, eight frames and 32 pixels for one latent, and their five seconds of sound in 126.
_LTX2, _LTX2_TOKENS, _LTX2_SOUND = (16, 16, 24), 1024, 126
# 97 frames of 544 x 960, four frames for one latent but for the first.
_SKYREELS, _SANA_TOKENS = (25, 68, 120), 300
# 576 x 1024, every frame with a latent of its own.
_STABLE_VIDEO, _STABLE_VIDEO_SETTINGS = (72, 128), 3
_ANIMATED, _ANIMATED_SIDE, _CLIP_TOKENS = 16, 64, 77


def _of_wan(config: Any) -> _Entries:
    size = _SMALL_WAN if config.in_channels == _SMALL_WAN_CHANNELS else _WAN
    entries = {
        "hidden_states": InputEntry(shape=(config.in_channels, *size)),
        **_TIMESTEP,
        "encoder_hidden_states": InputEntry(shape=(_WAN_TOKENS, config.text_dim)),
    }
    if config.image_dim is not None:
        entries["encoder_hidden_states_image"] = InputEntry(shape=(_CLIP_VISION_TOKENS, config.image_dim))
    return entries


def _of_ltx(config: Any) -> _Entries:
    frames, height, width = _LTX
    return {
        "hidden_states": InputEntry(shape=(frames * height * width, config.in_channels)),
        "encoder_hidden_states": InputEntry(shape=(_LTX_TOKENS, config.caption_channels)),
        **_TIMESTEP,
        "encoder_attention_mask": _whole(_LTX_TOKENS),
        "num_frames": frames,
        "height": height,
        "width": width,
    }


def _of_hunyuan(config: Any) -> _Entries:
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return {
        "hidden_states": InputEntry(shape=(config.in_channels, *_HUNYUAN)),
        **_TIMESTEP,
        "encoder_hidden_states": InputEntry(shape=(_HUNYUAN_TOKENS, config.text_embed_dim)),
        "encoder_attention_mask": _whole(_HUNYUAN_TOKENS),
        "pooled_projections": InputEntry(shape=(config.pooled_projection_dim,)),
        **guidance,
    }


def _of_cogvideo(config: Any) -> _Entries:
    frames = (config.sample_frames - 1) // config.temporal_compression_ratio + 1
    size, patches_deep = (config.sample_height, config.sample_width), config.patch_size_t or 1
    if config.patch_size_t is not None:
        # The sizes in its configuration are not those that it was made for; its pipeline fills up the last patch.
        size, frames = _COGVIDEO_1_5, -(-frames // patches_deep) * patches_deep
    entries: dict[str, Any] = {
        "hidden_states": InputEntry(shape=(frames, config.in_channels, *size)),
        "encoder_hidden_states": InputEntry(shape=(config.max_text_seq_length, config.text_embed_dim)),
        **_TIMESTEP,
    }
    if config.ofs_embed_dim is not None:
        entries["ofs"] = InputEntry(shape=(1,), is_batched=False)
    if config.use_rotary_positional_embeddings:
        tokens = frames // patches_deep * (size[0] // config.patch_size) * (size[1] // config.patch_size)
        angles = InputEntry(shape=(tokens, config.attention_head_dim), is_batched=False)
        entries["image_rotary_emb"] = (angles, angles)
    return entries


def _of_cosmos(config: Any) -> _Entries:
    _, height, width = _COSMOS
    pixels = (height * _PIXELS_OF_LATENT, width * _PIXELS_OF_LATENT)
    mask = {"padding_mask": InputEntry(shape=(1, 1, *pixels), is_batched=False)} if config.concat_padding_mask else {}
    return {
        "hidden_states": InputEntry(shape=(config.in_channels, *_COSMOS)),
        "timestep": InputEntry(shape=()),
        "encoder_hidden_states": InputEntry(shape=(_COSMOS_TOKENS, config.text_embed_dim)),
        "fps": _COSMOS_RATE,
        **mask,
    }


def _of_ltx2(config: Any) -> _Entries:
    frames, height, width = _LTX2
    text = InputEntry(shape=(_LTX2_TOKENS, config.caption_channels))
    return {
        "hidden_states": InputEntry(shape=(frames * height * width, config.in_channels)),
        "audio_hidden_states": InputEntry(shape=(_LTX2_SOUND, config.audio_in_channels)),
        "encoder_hidden_states": text,
        "audio_encoder_hidden_states": text,
        **_TIMESTEP,
        "sigma": InputEntry(shape=()),
        "encoder_attention_mask": _whole(_LTX2_TOKENS),
        "audio_encoder_attention_mask": _whole(_LTX2_TOKENS),
        "num_frames": frames,
        "height": height,
        "width": width,
        "audio_num_frames": _LTX2_SOUND,
    }


def _of_sana(config: Any) -> _Entries:
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return {
        "hidden_states": InputEntry(shape=(config.in_channels, *_WAN)),
        "encoder_hidden_states": InputEntry(shape=(_SANA_TOKENS, config.caption_channels)),
        **_TIMESTEP,
        "encoder_attention_mask": _whole(_SANA_TOKENS),
        **guidance,
    }


def _of_skyreels(config: Any) -> _Entries:
    return {**_of_wan(config), "hidden_states": InputEntry(shape=(config.in_channels, *_SKYREELS))}


def _of_vace(config: Any) -> _Entries:
    return {**_of_wan(config), "control_hidden_states": InputEntry(shape=(config.vace_in_channels, *_WAN))}


def _of_mochi(config: Any) -> _Entries:
    return {
        "hidden_states": InputEntry(shape=(config.in_channels, *_MOCHI)),
        "encoder_hidden_states": InputEntry(shape=(_MOCHI_TOKENS, config.text_embed_dim)),
        **_TIMESTEP,
        "encoder_attention_mask": _whole(_MOCHI_TOKENS, dtype=DType.BOOL),
    }


def _of_stable_video(config: Any) -> _Entries:
    return {
        "sample": InputEntry(shape=(config.num_frames, config.in_channels, *_STABLE_VIDEO)),
        **_TIMESTEP,
        "encoder_hidden_states": InputEntry(shape=(1, config.cross_attention_dim)),
        "added_time_ids": InputEntry(shape=(_STABLE_VIDEO_SETTINGS,)),
    }


def _of_motion(config: Any) -> _Entries:
    side = config.sample_size or _ANIMATED_SIDE
    return {
        "sample": InputEntry(shape=(config.in_channels, _ANIMATED, side, side)),
        **_TIMESTEP,
        # The pipeline repeats the prompt for each frame.
        "encoder_hidden_states": InputEntry(shape=(_CLIP_TOKENS, config.cross_attention_dim), rows=_ANIMATED),
    }


def _whole(length: int, *, dtype: DType = DType.INT64) -> InputEntry:
    """A mask that leaves nothing out."""
    return InputEntry(shape=(length,), dtype=dtype, values=(1,) * length)


_TIMESTEP: Mapping[str, InputEntry] = {"timestep": InputEntry(shape=(), dtype=DType.INT64)}

#: What makes the inputs of a class from its configuration: tensors and plain values by the names of its forward.
VIDEO_CLASSES: Mapping[str, Callable[[Any], _Entries | None]] = {
    "CogVideoXTransformer3DModel": _of_cogvideo,
    "CosmosTransformer3DModel": _of_cosmos,
    "HunyuanVideoTransformer3DModel": _of_hunyuan,
    "LTX2VideoTransformer3DModel": _of_ltx2,
    "LTXVideoTransformer3DModel": _of_ltx,
    "MochiTransformer3DModel": _of_mochi,
    "SanaVideoTransformer3DModel": _of_sana,
    "SkyReelsV2Transformer3DModel": _of_skyreels,
    "UNetMotionModel": _of_motion,
    "UNetSpatioTemporalConditionModel": _of_stable_video,
    "WanTransformer3DModel": _of_wan,
    "WanVACETransformer3DModel": _of_vace,
}
