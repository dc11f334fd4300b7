"""The inputs that a model of diffusers is read with where the caller gives none: one call of it in its pipeline.

They follow from the class and its configuration: a denoising step of an image at the size that the model was trained
for, beside as much text as the pipeline pads every prompt to, or takes at most where it pads none. Classes that are not
listed have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dippm.errors import UsageError
from dippm.frontends.diffusers_video_autoencoders import VIDEO_AUTOENCODERS, video_of
from dippm.frontends.diffusers_video_inputs import VIDEO_CLASSES
from dippm.frontends.inputs import InputEntry, InputShapes, parse_input_shapes
from dippm.graph import DType

__all__ = ["default_inputs", "parse_image"]

# Tensors, and among those of some classes plain values and lists of them.
_Entries = Mapping[str, Any]

_ASKED = "image"
# Pixels beside each other for one latent of the autoencoders that these models work with.
_PIXELS_OF_LATENT = 8
# Latents beside each other for one token of Flux, whose pipeline cuts the image.
_LATENTS_OF_TOKEN = 2
# Of those whose configuration says none: Stable Diffusion's ControlNets, and what SDXL and Flux make by default.
_PIXELS, _LARGE_PIXELS = 512, 1024
# What CLIP's tokenizer and the pipelines pad a prompt to.
_CLIP_TOKENS = 77
_SD3_TOKENS = 77 + 256
_FLUX_TOKENS = 512
_PIXART_ALPHA_TOKENS, _PIXART_SIGMA_TOKENS = 120, 300
_QWEN_TOKENS, _SANA_TOKENS, _LUMINA_TOKENS, _AURA_TOKENS = 512, 300, 256, 256
_HUNYUAN_TOKENS, _COGVIEW3_TOKENS, _COGVIEW4_TOKENS, _OVIS_TOKENS, _KANDINSKY_TOKENS = 256, 224, 1024, 256, 128
# Of Sana's autoencoder, and of Flux 2's with the four latents that its pipeline puts together.
_PIXELS_OF_SANA, _PIXELS_OF_FLUX2 = 32, 16
_AURA_PIXELS = 1024
# What SDXL takes beside the prompt: its summary, of this width, and sizes of the image, six or of its refiner five.
_SIZES_BESIDE_TEXT = "text_time"
_POOLED_TEXT = 1280
_SIZES, _SIZES_OF_REFINER = 6, 5
# Models of DeepFloyd take pixels, three of an image and three of the smaller one that is to be enlarged.
_CHANNELS_OF_PIXELS = (3, 6)


def default_inputs(module: Any, *, image: int | None) -> InputShapes:
    """Inputs of a model by the names of its forward; empty where they are not known.

    Args:
        module: The model.
        image: Pixels of a side of the image; None for what the configuration says.

    Raises:
        UsageError: ``zoo.image_invalid`` where an image is asked for of a model whose inputs are not known, or of a
            size that it does not cut into whole patches.
    """
    definition = type(module).__name__
    entries = _CLASSES[definition](module.config, image) if definition in _CLASSES else None
    if definition in VIDEO_CLASSES and image is None:
        entries = VIDEO_CLASSES[definition](module.config)
    if definition in VIDEO_AUTOENCODERS and image is None:
        entries = video_of(definition)
    if entries is None and image is not None:
        raise UsageError(
            f"Which inputs {definition} has for an image of some size is not known.",
            code="zoo.image_invalid",
            cure=f"Leave '#{_ASKED}={image}' out, and give the inputs.",
        )
    return InputShapes() if entries is None else parse_input_shapes(entries)


def parse_image(asked: str, *, name: str) -> int:
    """Pixels of a side of the image that is asked for, as ``"image=512"``.

    Args:
        asked: What stands behind the ``#``.
        name: The model, for messages.

    Raises:
        UsageError: ``zoo.image_invalid``.
    """
    word, _, count = asked.partition("=")
    if word != _ASKED or not (count.isascii() and count.isdigit() and len(count) < 6 and int(count) > 0):
        raise UsageError(
            f"'#{asked}' names no size of an image.",
            code="zoo.image_invalid",
            cure=f"Write {name.partition('#')[0]}#{_ASKED}=512 for images of 512 x 512 pixels.",
        )
    return int(count)


def _of_unet(config: Any, image: int | None) -> _Entries | None:
    return _with_image("sample", config, image, patch=1, beside={**_TIMESTEP, **_class_labels(config)})


def _of_conditional_unet(config: Any, image: int | None) -> _Entries | None:
    conditions = _conditions(config)
    if conditions is None:
        return None
    if config.time_cond_proj_dim is not None:
        conditions = {**conditions, "timestep_cond": InputEntry(shape=(config.time_cond_proj_dim,))}
    takes_pixels = config.in_channels in _CHANNELS_OF_PIXELS
    return _with_image("sample", config, image, patch=1 if takes_pixels else _PIXELS_OF_LATENT, beside=conditions)


def _of_controlnet(config: Any, image: int | None) -> _Entries | None:
    conditions = _conditions(config)
    if conditions is None:
        return None
    pixels = image or (_LARGE_PIXELS if config.addition_embed_type == _SIZES_BESIDE_TEXT else _PIXELS)
    latents = _cut(pixels, patch=_PIXELS_OF_LATENT)
    return {
        "sample": InputEntry(shape=(config.in_channels, latents, latents)),
        **conditions,
        "controlnet_cond": InputEntry(shape=(config.conditioning_channels, pixels, pixels)),
    }


def _of_autoencoder(config: Any, image: int | None) -> _Entries | None:
    return _with_image("sample", config, image, patch=1, beside={})


def _of_tiny_autoencoder(config: Any, image: int | None) -> _Entries:
    pixels = image or _PIXELS
    return {"sample": InputEntry(shape=(config.in_channels, pixels, pixels))}


def _of_deep_autoencoder(config: Any, image: int | None) -> _Entries:
    pixels = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_SANA) * _PIXELS_OF_SANA
    return {"sample": InputEntry(shape=(config.in_channels, pixels, pixels))}


def _of_qwen_autoencoder(config: Any, image: int | None) -> _Entries:
    pixels = image or _LARGE_PIXELS
    # An image is a video of one frame.
    return {"sample": InputEntry(shape=(config.input_channels, 1, pixels, pixels))}


def _of_sd3(config: Any, image: int | None) -> _Entries | None:
    return _with_patches(config, image, beside={
        "encoder_hidden_states": InputEntry(shape=(_SD3_TOKENS, config.joint_attention_dim)),
        "pooled_projections": InputEntry(shape=(config.pooled_projection_dim,)),
        "timestep": InputEntry(shape=()),
    })  # fmt: skip


def _of_sd3_controlnet(config: Any, image: int | None) -> _Entries | None:
    entries = _of_sd3(config, image)
    if entries is None:
        return None
    channels, *size = entries["hidden_states"].shape
    return {**entries, "controlnet_cond": InputEntry(shape=(channels + config.extra_conditioning_channels, *size))}


def _of_flux(config: Any, image: int | None) -> _Entries:
    tokens = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_LATENT * _LATENTS_OF_TOKEN) ** 2
    axes = len(config.axes_dims_rope)
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return {
        "hidden_states": InputEntry(shape=(tokens, config.in_channels)),
        "encoder_hidden_states": InputEntry(shape=(_FLUX_TOKENS, config.joint_attention_dim)),
        "pooled_projections": InputEntry(shape=(config.pooled_projection_dim,)),
        "timestep": InputEntry(shape=()),
        "img_ids": InputEntry(shape=(tokens, axes), is_batched=False),
        "txt_ids": InputEntry(shape=(_FLUX_TOKENS, axes), is_batched=False),
        **guidance,
    }


def _of_flux_controlnet(config: Any, image: int | None) -> _Entries | None:
    if config.conditioning_embedding_channels is not None or config.num_mode is not None:
        return None
    entries = _of_flux(config, image)
    return {**entries, "controlnet_cond": entries["hidden_states"]}


def _of_flux2(config: Any, image: int | None) -> _Entries:
    tokens = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_FLUX2) ** 2
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return {**_with_positions(config, tokens), **guidance}


def _of_chroma(config: Any, image: int | None) -> _Entries:
    tokens = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_LATENT * _LATENTS_OF_TOKEN) ** 2
    mask = InputEntry(shape=(_FLUX_TOKENS + tokens,), dtype=DType.BOOL)
    return {**_with_positions(config, tokens), "attention_mask": mask}


def _with_positions(config: Any, tokens: int, *, text: int = _FLUX_TOKENS) -> _Entries:
    """An image in tokens and a text, with the positions of both, which all samples share."""
    axes = len(config.axes_dims_rope)
    return {
        "hidden_states": InputEntry(shape=(tokens, config.in_channels)),
        "encoder_hidden_states": InputEntry(shape=(text, config.joint_attention_dim)),
        "timestep": InputEntry(shape=()),
        "img_ids": InputEntry(shape=(tokens, axes), is_batched=False),
        "txt_ids": InputEntry(shape=(text, axes), is_batched=False),
    }


def _of_qwen(config: Any, image: int | None) -> _Entries:
    side = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_LATENT * _LATENTS_OF_TOKEN)
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return {
        "hidden_states": InputEntry(shape=(side * side, config.in_channels)),
        "encoder_hidden_states": InputEntry(shape=(_QWEN_TOKENS, config.joint_attention_dim)),
        "timestep": InputEntry(shape=()),
        # Frames, height and width of the images of the first sample, after which the others go.
        "img_shapes": [[tuple(f"={size}" for size in (1, side, side))]],
        **guidance,
    }


def _of_sana(config: Any, image: int | None) -> _Entries | None:
    guidance = {"guidance": InputEntry(shape=())} if config.guidance_embeds else {}
    return _with_image("hidden_states", config, image, patch=_PIXELS_OF_SANA, beside={
        "encoder_hidden_states": InputEntry(shape=(_SANA_TOKENS, config.caption_channels)),
        **_TIMESTEP,
        "encoder_attention_mask": InputEntry(shape=(_SANA_TOKENS,), dtype=DType.INT64),
        **guidance,
    })  # fmt: skip


def _of_lumina2(config: Any, image: int | None) -> _Entries | None:
    # It takes every text as long as its mask says.
    mask = InputEntry(shape=(_LUMINA_TOKENS,), dtype=DType.INT64, values=(1,) * _LUMINA_TOKENS)
    return _with_patches(config, image, beside={
        "timestep": InputEntry(shape=()),
        "encoder_hidden_states": InputEntry(shape=(_LUMINA_TOKENS, config.cap_feat_dim)),
        "encoder_attention_mask": mask,
    })  # fmt: skip


def _of_aura(config: Any, image: int | None) -> _Entries | None:
    # Its pipeline makes larger images than the configuration names.
    return _with_patches(config, image or _AURA_PIXELS, beside={
        "encoder_hidden_states": InputEntry(shape=(_AURA_TOKENS, config.joint_attention_dim)),
        "timestep": InputEntry(shape=()),
    })  # fmt: skip


def _of_pixart(config: Any, image: int | None) -> _Entries | None:
    # Sigma says that it has none of Alpha's conditions; Alpha leaves it to the size of its image.
    is_sigma = config.use_additional_conditions is False
    tokens = _PIXART_SIGMA_TOKENS if is_sigma else _PIXART_ALPHA_TOKENS
    return _with_patches(config, image, beside={
        "encoder_hidden_states": InputEntry(shape=(tokens, config.caption_channels or config.cross_attention_dim)),
        "encoder_attention_mask": InputEntry(shape=(tokens,), dtype=DType.INT64),
        **_TIMESTEP,
        "added_cond_kwargs.resolution": InputEntry(shape=(2,)),
        "added_cond_kwargs.aspect_ratio": InputEntry(shape=(1,)),
    })  # fmt: skip


def _of_hunyuan(config: Any, image: int | None) -> _Entries | None:
    entries = _with_patches(config, image, beside={
        "timestep": InputEntry(shape=()),
        "encoder_hidden_states": InputEntry(shape=(_CLIP_TOKENS, config.cross_attention_dim)),
        "text_embedding_mask": InputEntry(shape=(_CLIP_TOKENS,), dtype=DType.INT64),
        "encoder_hidden_states_t5": InputEntry(shape=(_HUNYUAN_TOKENS, config.cross_attention_dim_t5)),
        "text_embedding_mask_t5": InputEntry(shape=(_HUNYUAN_TOKENS,), dtype=DType.INT64),
    })  # fmt: skip
    if entries is None:
        return None
    _, height, width = entries["hidden_states"].shape
    tokens = (height // config.patch_size) * (width // config.patch_size)
    angles = InputEntry(shape=(tokens, config.hidden_size // config.num_attention_heads), is_batched=False)
    settings = {
        "image_meta_size": InputEntry(shape=(_SIZES,)),
        "style": InputEntry(shape=(), dtype=DType.INT64),
    }
    takes_settings = config.use_style_cond_and_image_meta_size
    return {**entries, **(settings if takes_settings else {}), "image_rotary_emb": (angles, angles)}


def _of_cogview3(config: Any, image: int | None) -> _Entries | None:
    return _of_cogview(config, image, tokens=_COGVIEW3_TOKENS)


def _of_cogview4(config: Any, image: int | None) -> _Entries | None:
    return _of_cogview(config, image, tokens=_COGVIEW4_TOKENS)


def _of_cogview(config: Any, image: int | None, *, tokens: int) -> _Entries | None:
    size = InputEntry(shape=(2,))
    return _with_patches(config, image, beside={
        "encoder_hidden_states": InputEntry(shape=(tokens, config.text_embed_dim)),
        **_TIMESTEP,
        **dict.fromkeys(("original_size", "target_size", "crop_coords"), size),
    })  # fmt: skip


def _of_ovis(config: Any, image: int | None) -> _Entries:
    tokens = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_LATENT * _LATENTS_OF_TOKEN) ** 2
    return _with_positions(config, tokens, text=_OVIS_TOKENS)


def _of_kandinsky3(config: Any, image: int | None) -> _Entries:
    latents = _cut(image or _LARGE_PIXELS, patch=_PIXELS_OF_LATENT)
    return {
        "sample": InputEntry(shape=(config.in_channels, latents, latents)),
        **_TIMESTEP,
        "encoder_hidden_states": InputEntry(shape=(_KANDINSKY_TOKENS, config.encoder_hid_dim)),
        "encoder_attention_mask": InputEntry(shape=(_KANDINSKY_TOKENS,), dtype=DType.INT64),
    }


def _of_dit(config: Any, image: int | None) -> _Entries | None:
    return _with_patches(config, image, beside={**_TIMESTEP, "class_labels": InputEntry(shape=(), dtype=DType.INT64)})


def _with_patches(config: Any, image: int | None, *, beside: _Entries) -> _Entries | None:
    """What a transformer takes, which cuts the latents into patches."""
    if image is not None:
        _cut(image, patch=_PIXELS_OF_LATENT * config.patch_size)
    return _with_image("hidden_states", config, image, patch=_PIXELS_OF_LATENT, beside=beside)


def _with_image(name: str, config: Any, image: int | None, *, patch: int, beside: _Entries) -> _Entries | None:
    """An image and what is beside it; None where neither the caller nor the configuration says its size.

    Args:
        name: Name of the argument that takes it.
        config: The configuration; its size is in what the model takes, be it pixels or latents.
        image: Pixels of a side, where the caller says so.
        patch: Pixels of a side of what the model takes as one.
        beside: The other inputs.
    """
    size = config.sample_size if image is None else _cut(image, patch=patch)
    if not size:
        return None
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return {name: InputEntry(shape=(config.in_channels, int(height), int(width))), **beside}


def _cut(pixels: int, *, patch: int) -> int:
    """How many patches of so many pixels lie beside each other."""
    if pixels % patch:
        raise UsageError(
            f"The model takes images whose sides are multiples of {patch} pixels. Got {pixels} instead.",
            code="zoo.image_invalid",
        )
    return pixels // patch


def _conditions(config: Any) -> _Entries | None:
    """What steers a step of denoising: the time, the text, and what some models take beside it; None where unknown."""
    if config.encoder_hid_dim_type not in {None, "text_proj"}:
        return None
    width = config.encoder_hid_dim or config.cross_attention_dim
    text = InputEntry(shape=(_CLIP_TOKENS, width[0] if isinstance(width, list | tuple) else width))
    entries = {**_TIMESTEP, "encoder_hidden_states": text, **_class_labels(config)}
    if config.addition_embed_type == _SIZES_BESIDE_TEXT:
        whole, each = config.projection_class_embeddings_input_dim, config.addition_time_embed_dim
        sizes = _SIZES_OF_REFINER if whole == _POOLED_TEXT + _SIZES_OF_REFINER * each else _SIZES
        entries["added_cond_kwargs.text_embeds"] = InputEntry(shape=(whole - sizes * each,))
        entries["added_cond_kwargs.time_ids"] = InputEntry(shape=(sizes,))
    elif config.addition_embed_type not in {None, "text"}:
        return None
    return entries


def _class_labels(config: Any) -> _Entries:
    """The class of the image, or what stands for it; empty where a model takes none."""
    kind = config.class_embed_type
    if kind in {"projection", "simple_projection"}:
        return {"class_labels": InputEntry(shape=(config.projection_class_embeddings_input_dim,))}
    if kind == "identity":
        return {"class_labels": InputEntry(shape=(4 * config.block_out_channels[0],))}
    is_number = kind == "timestep" or config.num_class_embeds is not None
    return {"class_labels": InputEntry(shape=(), dtype=DType.INT64)} if is_number else {}


_TIMESTEP: _Entries = {"timestep": InputEntry(shape=(), dtype=DType.INT64)}
_CLASSES: Mapping[str, Callable[[Any, int | None], _Entries | None]] = {
    "AsymmetricAutoencoderKL": _of_autoencoder,
    "AuraFlowTransformer2DModel": _of_aura,
    "AutoencoderDC": _of_deep_autoencoder,
    "AutoencoderKL": _of_autoencoder,
    "AutoencoderKLFlux2": _of_autoencoder,
    "AutoencoderKLQwenImage": _of_qwen_autoencoder,
    "AutoencoderTiny": _of_tiny_autoencoder,
    "ChromaTransformer2DModel": _of_chroma,
    "CogView3PlusTransformer2DModel": _of_cogview3,
    "CogView4Transformer2DModel": _of_cogview4,
    "ControlNetModel": _of_controlnet,
    "DiTTransformer2DModel": _of_dit,
    "Flux2Transformer2DModel": _of_flux2,
    "FluxControlNetModel": _of_flux_controlnet,
    "FluxTransformer2DModel": _of_flux,
    "HunyuanDiT2DModel": _of_hunyuan,
    "Kandinsky3UNet": _of_kandinsky3,
    "Lumina2Transformer2DModel": _of_lumina2,
    "OvisImageTransformer2DModel": _of_ovis,
    "PixArtTransformer2DModel": _of_pixart,
    "QwenImageTransformer2DModel": _of_qwen,
    "SD3ControlNetModel": _of_sd3_controlnet,
    "SD3Transformer2DModel": _of_sd3,
    "SanaTransformer2DModel": _of_sana,
    "UNet2DConditionModel": _of_conditional_unet,
    "UNet2DModel": _of_unet,
    "VQModel": _of_autoencoder,
}
