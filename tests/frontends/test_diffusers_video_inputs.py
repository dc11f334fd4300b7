"""Every class of videos that has inputs by default takes them, and they are those of its pipeline."""

from importlib.util import find_spec
from typing import Any

import pytest

from dippm.errors import UsageError
from dippm.frontends import zoo
from dippm.frontends.diffusers_inputs import default_inputs
from dippm.frontends.diffusers_video_inputs import VIDEO_CLASSES

if any(find_spec(package) is None for package in ("torch", "transformers", "diffusers")):
    pytest.skip("diffusers is not installed", allow_module_level=True)

_DIT = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}
_WAN = {**_DIT, "text_dim": 8, "ffn_dim": 16, "freq_dim": 8}
_COG = {**_DIT, "text_embed_dim": 8, "time_embed_dim": 8, "sample_width": 8, "sample_height": 6, "sample_frames": 9}
_UNET = {
    "block_out_channels": (32, 32), "layers_per_block": 1, "cross_attention_dim": 8, "num_attention_heads": 2,
}  # fmt: skip
_CASES: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("WanTransformer3DModel", _WAN, {
        "hidden_states": (16, 21, 60, 104), "timestep": (), "encoder_hidden_states": (512, 8),
    }),
    ("WanTransformer3DModel", {**_WAN, "in_channels": 48}, {
        "hidden_states": (48, 31, 44, 80), "timestep": (), "encoder_hidden_states": (512, 8),
    }),
    ("WanTransformer3DModel", {**_WAN, "in_channels": 36, "image_dim": 6, "added_kv_proj_dim": 32}, {
        "hidden_states": (36, 21, 60, 104), "timestep": (), "encoder_hidden_states": (512, 8),
        "encoder_hidden_states_image": (257, 6),
    }),
    ("LTXVideoTransformer3DModel", {**_DIT, "in_channels": 8, "cross_attention_dim": 32, "caption_channels": 8}, {
        "hidden_states": (7392, 8), "encoder_hidden_states": (128, 8), "timestep": (), "encoder_attention_mask": (128,),
    }),
    ("HunyuanVideoTransformer3DModel", {
        **_DIT, "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": 8, "pooled_projection_dim": 8,
        "rope_axes_dim": (4, 6, 6),
    }, {
        "hidden_states": (16, 33, 90, 160), "timestep": (), "encoder_hidden_states": (256, 8),
        "encoder_attention_mask": (256,), "pooled_projections": (8,), "guidance": (),
    }),
    ("CogVideoXTransformer3DModel", _COG, {
        "hidden_states": (3, 16, 6, 8), "encoder_hidden_states": (226, 8), "timestep": (),
    }),
    ("CogVideoXTransformer3DModel", {**_COG, "use_rotary_positional_embeddings": True}, {
        "hidden_states": (3, 16, 6, 8), "encoder_hidden_states": (226, 8), "timestep": (),
        "image_rotary_emb.0": (36, 16), "image_rotary_emb.1": (36, 16),
    }),
    ("CogVideoXTransformer3DModel", {
        **_COG, "sample_frames": 17, "use_rotary_positional_embeddings": True, "patch_size_t": 2, "patch_bias": False,
        "ofs_embed_dim": 8,
    }, {
        "hidden_states": (6, 16, 96, 170), "encoder_hidden_states": (226, 8), "timestep": (), "ofs": (1,),
        "image_rotary_emb.0": (3 * 48 * 85, 16), "image_rotary_emb.1": (3 * 48 * 85, 16),
    }),
    ("CosmosTransformer3DModel", {**_DIT, "text_embed_dim": 8, "adaln_lora_dim": 8}, {
        "hidden_states": (16, 16, 88, 160), "timestep": (), "encoder_hidden_states": (512, 8),
        "padding_mask": (1, 1, 704, 1280),
    }),
    ("LTX2VideoTransformer3DModel", {
        **_DIT, "in_channels": 8, "cross_attention_dim": 32, "audio_in_channels": 6, "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 8, "audio_cross_attention_dim": 16, "caption_channels": 12,
    }, {
        "hidden_states": (6144, 8), "audio_hidden_states": (126, 6), "encoder_hidden_states": (1024, 12),
        "audio_encoder_hidden_states": (1024, 12), "timestep": (), "sigma": (), "encoder_attention_mask": (1024,),
        "audio_encoder_attention_mask": (1024,),
    }),
    ("SanaVideoTransformer3DModel", {
        **_DIT, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32,
        "caption_channels": 12, "guidance_embeds": True,
    }, {
        "hidden_states": (16, 21, 60, 104), "encoder_hidden_states": (300, 12), "timestep": (),
        "encoder_attention_mask": (300,), "guidance": (),
    }),
    ("SkyReelsV2Transformer3DModel", _WAN, {
        "hidden_states": (16, 25, 68, 120), "timestep": (), "encoder_hidden_states": (512, 8),
    }),
    ("WanVACETransformer3DModel", {**_WAN, "vace_layers": [0], "vace_in_channels": 6}, {
        "hidden_states": (16, 21, 60, 104), "timestep": (), "encoder_hidden_states": (512, 8),
        "control_hidden_states": (6, 21, 60, 104),
    }),
    ("MochiTransformer3DModel", {**_DIT, "pooled_projection_dim": 16, "text_embed_dim": 8, "time_embed_dim": 8}, {
        "hidden_states": (12, 4, 60, 106), "encoder_hidden_states": (256, 8), "timestep": (),
        "encoder_attention_mask": (256,),
    }),
    ("UNetSpatioTemporalConditionModel", {
        **_UNET, "num_attention_heads": (2, 2), "num_frames": 3, "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 24,
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    }, {"sample": (3, 8, 72, 128), "timestep": (), "encoder_hidden_states": (1, 8), "added_time_ids": (3,)}),
    ("UNetMotionModel", {
        **_UNET, "motion_num_attention_heads": 2, "sample_size": 8,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
    }, {"sample": (4, 16, 8, 8), "timestep": (), "encoder_hidden_states": (77, 8)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "expected"), _CASES)
def test_the_inputs_are_those_of_the_pipeline(
    name: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]]
) -> None:
    from dippm.frontends.torch import read_module

    module, inputs = zoo.build(f"diffusers:{name}", options=options)
    assert {path: entry.shape for path, entry in (inputs.named or {}).items()} == expected
    assert not read_module(module, input=inputs, batch_hint=1).unsupported_ops


def test_every_class_is_tested() -> None:
    assert {name for name, _, _ in _CASES} == VIDEO_CLASSES.keys()


def test_a_video_has_no_size_of_an_image() -> None:
    module, _ = zoo.build("diffusers:WanTransformer3DModel", options=_WAN)
    with pytest.raises(UsageError) as caught:
        default_inputs(module, image=512)
    assert caught.value.code == "zoo.image_invalid"
