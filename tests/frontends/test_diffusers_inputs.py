"""Every class that has inputs by default takes them, and they are those of its pipeline."""

from importlib.util import find_spec
from typing import Any

import pytest

from dippm.errors import UsageError
from dippm.frontends import zoo
from dippm.frontends.diffusers_inputs import default_inputs, parse_image
from dippm.frontends.inputs import InputShapes

if any(find_spec(package) is None for package in ("torch", "transformers", "diffusers")):
    pytest.skip("diffusers is not installed", allow_module_level=True)

_BLOCKS = {
    "block_out_channels": (8, 16), "norm_num_groups": 4, "attention_head_dim": 4, "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}  # fmt: skip
_UNET = {**_BLOCKS, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "sample_size": 8, "cross_attention_dim": 8}
_SDXL = {**_UNET, "addition_embed_type": "text_time", "addition_time_embed_dim": 256}
_DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "sample_size": 8}
_PIXART = {**_DIT, "cross_attention_dim": 16, "caption_channels": 12}
_FLUX = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": 8, "pooled_projection_dim": 8, "axes_dims_rope": (4, 6, 6)}  # fmt: skip
_FLUX2 = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
          "joint_attention_dim": 8, "in_channels": 8, "axes_dims_rope": (4, 4, 4, 4)}  # fmt: skip
_CHROMA = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
           "joint_attention_dim": 8, "axes_dims_rope": (4, 6, 6), "approximator_hidden_dim": 16,
           "approximator_layers": 1, "approximator_num_channels": 8}  # fmt: skip
_QWEN = {"num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 8,
         "axes_dims_rope": (4, 6, 6)}  # fmt: skip
_SANA = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "num_cross_attention_heads": 2,
         "cross_attention_head_dim": 8, "cross_attention_dim": 16, "caption_channels": 12,
         "sample_size": 4}  # fmt: skip
_LUMINA = {"sample_size": 8, "hidden_size": 24, "num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 2,
           "num_kv_heads": 1, "axes_dim_rope": (4, 4, 4), "cap_feat_dim": 8, "multiple_of": 8}  # fmt: skip
_AURA = {"num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
         "joint_attention_dim": 12, "caption_projection_dim": 16}  # fmt: skip
_SD3 = {**_DIT, "joint_attention_dim": 12, "caption_projection_dim": 16, "pooled_projection_dim": 20}
_COGVIEW = {**_DIT, "text_embed_dim": 12, "time_embed_dim": 8, "condition_dim": 4, "pos_embed_max_size": 8}
_BLOCK = {"block_out_channels": (8,), "norm_num_groups": 4}
_DEEP = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "encoder_layers_per_block": (1, 1),
         "decoder_layers_per_block": (1, 1), "encoder_qkv_multiscales": ((), ()), "attention_head_dim": 4,
         "decoder_qkv_multiscales": ((), ()), "latent_channels": 4}  # fmt: skip
_CASES: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("UNet2DConditionModel", _UNET, {
        "sample": (4, 8, 8), "timestep": (), "encoder_hidden_states": (77, 8),
    }),
    ("UNet2DConditionModel", {**_UNET, "sample_size": (8, 16), "num_class_embeds": 10, "time_cond_proj_dim": 6}, {
        "sample": (4, 8, 16), "timestep": (), "encoder_hidden_states": (77, 8), "class_labels": (),
        "timestep_cond": (6,),
    }),
    ("UNet2DConditionModel", {
        **_UNET, "class_embed_type": "projection", "projection_class_embeddings_input_dim": 20, "encoder_hid_dim": 12,
        "encoder_hid_dim_type": "text_proj",
    }, {"sample": (4, 8, 8), "timestep": (), "encoder_hidden_states": (77, 12), "class_labels": (20,)}),
    ("UNet2DConditionModel", {**_SDXL, "projection_class_embeddings_input_dim": 2816}, {
        "sample": (4, 8, 8), "timestep": (), "encoder_hidden_states": (77, 8),
        "added_cond_kwargs.text_embeds": (1280,), "added_cond_kwargs.time_ids": (6,),
    }),
    ("UNet2DConditionModel", {**_SDXL, "projection_class_embeddings_input_dim": 2560}, {
        "sample": (4, 8, 8), "timestep": (), "encoder_hidden_states": (77, 8),
        "added_cond_kwargs.text_embeds": (1280,), "added_cond_kwargs.time_ids": (5,),
    }),
    ("UNet2DModel", {
        **_BLOCKS, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "sample_size": 8, "num_class_embeds": 10,
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }, {"sample": (3, 8, 8), "timestep": (), "class_labels": ()}),
    ("UNet2DModel", {
        **_BLOCKS, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "sample_size": 8,
        "class_embed_type": "identity", "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }, {"sample": (3, 8, 8), "timestep": (), "class_labels": (32,)}),
    ("ControlNetModel", {**_BLOCKS, "cross_attention_dim": 8}, {
        "sample": (4, 64, 64), "timestep": (), "encoder_hidden_states": (77, 8), "controlnet_cond": (3, 512, 512),
    }),
    ("AutoencoderKL", {"block_out_channels": (8,), "norm_num_groups": 4, "sample_size": 16}, {"sample": (3, 16, 16)}),
    ("HunyuanDiT2DModel", {
        **_DIT, "hidden_size": 16, "patch_size": 2, "mlp_ratio": 2.0, "cross_attention_dim": 12, "num_layers": 2,
        "cross_attention_dim_t5": 24, "pooled_projection_dim": 10, "in_channels": 4,
        "activation_fn": "gelu-approximate",
    }, {
        "hidden_states": (4, 8, 8), "timestep": (), "encoder_hidden_states": (77, 12), "text_embedding_mask": (77,),
        "encoder_hidden_states_t5": (256, 24), "text_embedding_mask_t5": (256,), "image_meta_size": (6,), "style": (),
        "image_rotary_emb.0": (16, 8), "image_rotary_emb.1": (16, 8),
    }),
    ("CogView3PlusTransformer2DModel", _COGVIEW, {
        "hidden_states": (16, 8, 8), "encoder_hidden_states": (224, 12), "timestep": (), "original_size": (2,),
        "target_size": (2,), "crop_coords": (2,),
    }),
    ("CogView4Transformer2DModel", {**_COGVIEW, "rope_axes_dim": (8, 8)}, {
        "hidden_states": (16, 8, 8), "encoder_hidden_states": (1024, 12), "timestep": (), "original_size": (2,),
        "target_size": (2,), "crop_coords": (2,),
    }),
    ("Kandinsky3UNet", {
        "time_embedding_dim": 16, "groups": 4, "attention_head_dim": 4, "layers_per_block": 2, "cross_attention_dim": 8,
        "block_out_channels": (8, 16, 16, 16), "encoder_hid_dim": 12,
    }, {
        "sample": (4, 128, 128), "timestep": (), "encoder_hidden_states": (128, 12), "encoder_attention_mask": (128,),
    }),
    ("OvisImageTransformer2DModel", {
        "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "in_channels": 8,
        "joint_attention_dim": 12, "axes_dims_rope": (4, 6, 6),
    }, {
        "hidden_states": (4096, 8), "encoder_hidden_states": (256, 12), "timestep": (), "img_ids": (4096, 3),
        "txt_ids": (256, 3),
    }),
    ("PixArtTransformer2DModel", {**_DIT, "cross_attention_dim": 16}, {
        "hidden_states": (4, 8, 8), "encoder_hidden_states": (120, 16), "encoder_attention_mask": (120,),
        "timestep": (), "added_cond_kwargs.resolution": (2,), "added_cond_kwargs.aspect_ratio": (1,),
    }),
    ("SD3Transformer2DModel", {
        **_DIT, "sample_size": 8, "joint_attention_dim": 12, "caption_projection_dim": 16, "pooled_projection_dim": 20,
    }, {"hidden_states": (16, 8, 8), "encoder_hidden_states": (333, 12), "pooled_projections": (20,), "timestep": ()}),
    ("FluxTransformer2DModel", {**_FLUX, "guidance_embeds": True}, {
        "hidden_states": (4096, 64), "encoder_hidden_states": (512, 8), "pooled_projections": (8,), "timestep": (),
        "img_ids": (4096, 3), "txt_ids": (512, 3), "guidance": (),
    }),
    ("Flux2Transformer2DModel", _FLUX2, {
        "hidden_states": (4096, 8), "encoder_hidden_states": (512, 8), "timestep": (), "img_ids": (4096, 4),
        "txt_ids": (512, 4), "guidance": (),
    }),
    ("ChromaTransformer2DModel", _CHROMA, {
        "hidden_states": (4096, 64), "encoder_hidden_states": (512, 8), "timestep": (), "img_ids": (4096, 3),
        "txt_ids": (512, 3), "attention_mask": (4608,),
    }),
    ("FluxControlNetModel", _FLUX, {
        "hidden_states": (4096, 64), "encoder_hidden_states": (512, 8), "pooled_projections": (8,), "timestep": (),
        "img_ids": (4096, 3), "txt_ids": (512, 3), "controlnet_cond": (4096, 64),
    }),
    ("QwenImageTransformer2DModel", _QWEN, {
        "hidden_states": (4096, 64), "encoder_hidden_states": (512, 8), "timestep": (),
    }),
    ("SanaTransformer2DModel", _SANA, {
        "hidden_states": (32, 4, 4), "encoder_hidden_states": (300, 12), "timestep": (),
        "encoder_attention_mask": (300,),
    }),
    ("Lumina2Transformer2DModel", _LUMINA, {
        "hidden_states": (16, 8, 8), "encoder_hidden_states": (256, 8), "timestep": (),
        "encoder_attention_mask": (256,),
    }),
    ("AuraFlowTransformer2DModel", _AURA, {
        "hidden_states": (4, 128, 128), "encoder_hidden_states": (256, 12), "timestep": (),
    }),
    ("SD3ControlNetModel", {**_SD3, "extra_conditioning_channels": 1}, {
        "hidden_states": (16, 8, 8), "encoder_hidden_states": (333, 12), "pooled_projections": (20,), "timestep": (),
        "controlnet_cond": (17, 8, 8),
    }),
    ("AutoencoderKLFlux2", {**_BLOCK, "down_block_types": ("DownEncoderBlock2D",), "sample_size": 16,
                            "up_block_types": ("UpDecoderBlock2D",)}, {"sample": (3, 16, 16)}),
    ("VQModel", {**_BLOCK, "sample_size": 16}, {"sample": (3, 16, 16)}),
    ("AutoencoderTiny", {"encoder_block_out_channels": (8,) * 4, "decoder_block_out_channels": (8,) * 4}, {
        "sample": (3, 512, 512),
    }),
    ("AutoencoderDC", _DEEP, {"sample": (3, 1024, 1024)}),
    ("AutoencoderKLQwenImage", {"base_dim": 8, "z_dim": 4, "num_res_blocks": 1}, {"sample": (3, 1, 1024, 1024)}),
    ("PixArtTransformer2DModel", _PIXART, {
        "hidden_states": (4, 8, 8), "encoder_hidden_states": (120, 12), "encoder_attention_mask": (120,),
        "timestep": (), "added_cond_kwargs.resolution": (2,), "added_cond_kwargs.aspect_ratio": (1,),
    }),
    ("PixArtTransformer2DModel", {**_PIXART, "use_additional_conditions": False}, {
        "hidden_states": (4, 8, 8), "encoder_hidden_states": (300, 12), "encoder_attention_mask": (300,),
        "timestep": (), "added_cond_kwargs.resolution": (2,), "added_cond_kwargs.aspect_ratio": (1,),
    }),
    ("DiTTransformer2DModel", {**_DIT, "num_embeds_ada_norm": 10}, {
        "hidden_states": (4, 8, 8), "timestep": (), "class_labels": (),
    }),
]  # fmt: skip


def shapes(inputs: InputShapes) -> dict[str, tuple[int, ...]]:
    return {name: entry.shape for name, entry in (inputs.named or {}).items()}


@pytest.mark.parametrize(("name", "options", "expected"), _CASES)
def test_the_inputs_are_those_of_the_pipeline(
    name: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]]
) -> None:
    from dippm.frontends.torch import read_module

    module, inputs = zoo.build(f"diffusers:{name}", options=options)
    assert shapes(inputs) == expected
    graph = read_module(module, input=inputs)
    assert {graph.tensors[index].name for index in graph.inputs} <= expected.keys()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("UNet2DConditionModel", _UNET, {"sample": (4, 32, 32)}),
        ("UNet2DConditionModel", {**_UNET, "in_channels": 3}, {"sample": (3, 256, 256)}),
        ("ControlNetModel", {**_BLOCKS, "cross_attention_dim": 8}, {"controlnet_cond": (3, 256, 256)}),
        ("AutoencoderKL", {"block_out_channels": (8,), "norm_num_groups": 4}, {"sample": (3, 256, 256)}),
        ("FluxTransformer2DModel", _FLUX, {"hidden_states": (256, 64), "img_ids": (256, 3)}),
        ("DiTTransformer2DModel", {**_DIT, "num_embeds_ada_norm": 10}, {"hidden_states": (4, 32, 32)}),
        ("Flux2Transformer2DModel", _FLUX2, {"hidden_states": (256, 8), "img_ids": (256, 4)}),
        ("SanaTransformer2DModel", _SANA, {"hidden_states": (32, 8, 8)}),
        ("AutoencoderDC", _DEEP, {"sample": (3, 256, 256)}),
    ],
)
def test_an_image_may_have_another_size(
    name: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]]
) -> None:
    module, _ = zoo.build(f"diffusers:{name}", options=options)
    found = shapes(default_inputs(module, image=256))
    assert {name: found[name] for name in expected} == expected


def test_the_sizes_of_an_image_are_told_as_numbers() -> None:
    _, inputs = zoo.build("diffusers:QwenImageTransformer2DModel", options=_QWEN)
    assert inputs.structure is not None
    _, named = inputs.structure.fill(["tensor"] * 3)
    assert named["img_shapes"] == [[(1, 64, 64)]]


def test_conditions_of_other_networks_are_not_made_up() -> None:
    _, inputs = zoo.build("diffusers:FluxControlNetModel", options={**_FLUX, "num_mode": 3})
    assert inputs.is_empty


def test_a_size_that_leaves_a_rest_is_refused() -> None:
    module, _ = zoo.build("diffusers:DiTTransformer2DModel", options={**_DIT, "num_embeds_ada_norm": 10})
    with pytest.raises(UsageError, match="multiples of 16 pixels") as caught:
        default_inputs(module, image=264)
    assert caught.value.code == "zoo.image_invalid"


@pytest.mark.parametrize("options", [{**_UNET, "sample_size": None}, {**_UNET, "encoder_hid_dim_type": "image_proj",
                                                                       "encoder_hid_dim": 8}])  # fmt: skip
def test_what_the_configuration_does_not_tell_is_not_made_up(options: dict[str, Any]) -> None:
    _, inputs = zoo.build("diffusers:UNet2DConditionModel", options=options)
    assert inputs.is_empty


@pytest.mark.parametrize("asked", ["image", "image=", "image=0", "image=x", "image=-8", "image=1000000", "size=5", ""])
def test_a_size_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="names no size of an image"):
        parse_image(asked, name="./unet")


def test_a_size_is_read() -> None:
    assert parse_image("image=768", name="./unet") == 768
