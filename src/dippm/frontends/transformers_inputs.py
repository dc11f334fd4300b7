"""The inputs that a model of transformers is read with where the caller gives none.

They follow from the names of its forward's arguments and from its configuration. Where these do not tell how images or
sounds are laid out, the usual ways are tried on the part of the model that takes them. A text that an image is put into
has as many places for it as the model makes features of the image. Where no image fits the text, as in classes whose
own sizes do not go together, the text is there alone.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType

__all__ = ["default_inputs", "with_plain_text"]

_Entries = Mapping[str, InputEntry]

_SEQUENCE_LENGTH = 128
_AUDIO_SAMPLES = 16000  # one second
_AUDIO_FRAMES = 3000  # thirty seconds
_SERIES_LENGTH = 512
_IMAGE_PIXELS = 224
# Models of patches take an image of any size, and most do not say one.
_PATCHED_IMAGE_PIXELS = 448
_TEXTS = ("input_ids", "decoder_input_ids")
_MOST_PATCHES_ASIDE = 1024
_GRIDS = ("image_grid_thw", "grid_thw")
_TILES = (1, 2, 3, 5)
_MERGES = ("spatial_merge_size", "merge_kernel_size", "merge_size")
_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "feature_size", "input_dim")
# A token that no model gives a meaning of its own.
_PLAIN_TOKEN = 99


def default_inputs(module: Any, config: Any) -> _Entries:
    """Inputs of a model by the names of its forward.

    Args:
        module: The model.
        config: Its configuration.
    """
    parameters = inspect.signature(module.forward).parameters
    main = str(getattr(module, "main_input_name", "input_ids"))
    tokens = _tokens(config)
    entries: dict[str, InputEntry] = {}
    has_decoder = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters
    decoded = {"decoder_input_ids": tokens} if has_decoder else {}
    if main == "input_features" and main in parameters:
        ways = [{**way, **decoded} for way in _features(config)]
        return _first_taken(module, module.forward, iter(ways))[0] or ways[0]
    if main == "input_values" and main in parameters:
        entries[main] = _sound(config)
    elif "pixel_values" in parameters or not parameters.keys().isdisjoint(_GRIDS):
        entries.update(_images(module, config, parameters))
    elif "past_values" in parameters:
        entries["past_values"] = _series(config)
    else:
        entries["input_ids"] = tokens
    if "input_ids" in parameters and "pixel_values" in entries:
        entries.setdefault("input_ids", tokens)
    if "input_ids" in entries:
        entries.update(_beside_tokens(entries["input_ids"], config, parameters))
    return {**entries, **decoded}


def with_plain_text(given: InputShapes) -> InputShapes | None:
    """The inputs with texts that have no padding and no marks, which some models look for; None where all are known."""
    named = {
        name: replace(entry, values=(_PLAIN_TOKEN,) * math.prod(entry.shape))
        for name, entry in (given.named or {}).items()
        if name in _TEXTS and entry.values is None and entry.rows == 1
    }
    return replace(given, named={**(given.named or {}), **named}) if named else None


def _tokens(config: Any, *, places: int = 0) -> InputEntry:
    """A text, with places for the features of an image at its beginning."""
    text = getattr(config, "text_config", None) or config
    longest = getattr(text, "max_position_embeddings", None)
    length = places + _SEQUENCE_LENGTH
    if isinstance(longest, int) and longest > 0:
        length = max(min(length, longest), places)
    token = _image_token(config)
    values = None
    if places and token is not None:
        values = (token,) * places + (_PLAIN_TOKEN,) * (length - places)
    # Sounds that are written as tokens have a row for each of their codebooks.
    rows = 1 if places else int(getattr(config, "num_codebooks", None) or 1)
    return InputEntry(shape=(length,), dtype=DType.INT64, rows=rows, values=values)


def _beside_tokens(tokens: InputEntry, config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """What some models need to know of each token: whether it stands for an image, and where on the page it is."""
    entries = {}
    if "mm_token_type_ids" in parameters and tokens.values is not None:
        kinds = tuple(int(token == _image_token(config)) for token in tokens.values)
        entries["mm_token_type_ids"] = InputEntry(shape=tokens.shape, dtype=DType.INT64, values=kinds)
    if "bbox" in parameters and "pixel_values" in parameters:
        entries["bbox"] = InputEntry(shape=(*tokens.shape, 4), dtype=DType.INT64, values=(0,) * (4 * tokens.shape[0]))
    return entries


def _series(config: Any) -> InputEntry:
    length = getattr(config, "context_length", None) or _SERIES_LENGTH
    channels = getattr(config, "num_input_channels", None)
    return InputEntry(shape=(int(length), int(channels)) if channels else (int(length),))


def _features(config: Any) -> Iterator[_Entries]:
    """A spectrogram, in both orders that its bins and frames may have."""
    audio = getattr(config, "encoder_config", None) or getattr(config, "audio_config", None) or config
    bins = next((size for name in _BINS if isinstance(size := getattr(audio, name, None), int)), 80)
    positions = getattr(audio, "max_source_positions", None)
    frames = 2 * int(positions) if positions else _AUDIO_FRAMES
    for shape in ((bins, frames), (frames, bins)):
        yield {"input_features": InputEntry(shape=shape)}


def _sound(config: Any) -> InputEntry:
    frames, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    # A spectrogram where the model has a size for it, else the sound itself.
    return InputEntry(shape=(int(frames), int(bins)) if frames and bins else (_AUDIO_SAMPLES,))


def _images(module: Any, config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """One image for each sample, with the text that it is put into where there is a token that stands for it."""
    vision = getattr(config, "vision_config", None) or config
    grid = next((name for name in _GRIDS if name in parameters), None)
    image = _image(vision)
    ways: Iterator[_Entries]
    if "spatial_shapes" in parameters:
        ways = iter([_padded_patches(vision)])
    elif grid is not None:
        main = "pixel_values" if "pixel_values" in parameters else next(iter(parameters))
        ways = _patches(vision, main=main, grid=grid)
    else:
        ways = _tiles(image, has_sizes="image_sizes" in parameters)
    makes_features = next(
        (found for part in (module, module.base_model) if (found := getattr(part, "get_image_features", None))), None
    )
    if "input_ids" in parameters and makes_features is not None and _image_token(config) is not None:
        entries, features = _first_taken(module, makes_features, ways)
        if features is None:
            return entries or {"input_ids": _tokens(config)}
        table = module.get_input_embeddings()
        places = _count_features(features, size=getattr(table, "embedding_dim", None))
        return {**entries, "input_ids": _tokens(config, places=places)} if places else {"input_ids": _tokens(config)}
    first = next(ways)
    if grid is None:
        return first
    return _first_taken(module, module.forward, itertools.chain([first], ways))[0] or first


def _patches(vision: Any, *, main: str, grid: str) -> Iterator[_Entries]:
    """The patches of all images below each other, and the frames, height and width of each image in patches."""
    patch, channels = _side(getattr(vision, "patch_size", None)) or 14, _channels(vision)
    frames = _side(getattr(vision, "temporal_patch_size", None)) or 1
    merged = next((side for name in _MERGES if (side := _side(getattr(vision, name, None)))), 1)
    side = max((_side(getattr(vision, "image_size", None)) or _PATCHED_IMAGE_PIXELS) // patch // merged, 1) * merged
    size = InputEntry(shape=(3,), dtype=DType.INT64, values=(1, side, side))
    for shape in ((channels * frames * patch * patch,), (channels, patch, patch)):
        yield {main: InputEntry(shape=shape, rows=side * side), grid: size}


def _padded_patches(vision: Any) -> _Entries:
    """The patches of one image, none of them padding, and its height and width in patches."""
    patch = _side(getattr(vision, "patch_size", None)) or 16
    count = int(getattr(vision, "num_patches", None) or (_IMAGE_PIXELS // patch) ** 2)
    side = min(math.isqrt(count), _MOST_PATCHES_ASIDE)
    return {
        "pixel_values": InputEntry(shape=(side * side, _channels(vision) * patch * patch)),
        "pixel_attention_mask": InputEntry(shape=(side * side,), dtype=DType.INT64, values=(1,) * (side * side)),
        "spatial_shapes": InputEntry(shape=(2,), dtype=DType.INT64, values=(side, side)),
    }


def _tiles(image: InputEntry, *, has_sizes: bool) -> Iterator[_Entries]:
    """An image as it is, or as tiles with or without an overview, alone or with its height and width."""
    for shape in (image.shape, *((count, *image.shape) for count in _TILES)):
        pixels = {"pixel_values": InputEntry(shape=shape)}
        yield pixels
        if has_sizes:
            yield {**pixels, "image_sizes": InputEntry(shape=(2,), dtype=DType.INT64, values=image.shape[1:])}


def _image(config: Any) -> InputEntry:
    trained = getattr(config, "pretrained_cfg", None)
    if isinstance(trained, Mapping) and trained.get("input_size"):  # a model of timm
        channels, height, width = trained["input_size"]
        return InputEntry(shape=(int(channels), int(height), int(width)))
    size = getattr(config, "image_size", None) or _IMAGE_PIXELS
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return InputEntry(shape=(_channels(config), int(height), int(width)))


def _channels(config: Any) -> int:
    names = ("num_channels", "in_channels", "in_chans")
    return next((count for name in names if isinstance(count := getattr(config, name, None), int)), 3)


def _side(size: Any) -> int:
    """The side of a square, which a configuration may give as one number or as several; 0 where it gives none."""
    if isinstance(size, list | tuple) and size:
        size = size[-1]
    return size if isinstance(size, int) else 0


def _image_token(config: Any) -> int | None:
    """The token that stands for a feature of an image; None where there is none."""
    names = ("image_token_id", "image_token_index")
    return next((token for name in names if isinstance(token := getattr(config, name, None), int)), None)


def _first_taken(module: Any, function: Callable[..., Any], ways: Iterator[_Entries]) -> tuple[_Entries, Any]:
    """The first inputs that a function of a module takes, and what it makes of those of one sample.

    Where that depends on values, None in its place, and reading the module says so. No inputs where it takes none.
    """
    from dippm.frontends.torch.asked_values import DataDependentError
    from dippm.frontends.torch.recorded_call import call_without_data

    arguments = inspect.signature(function).parameters.values()
    takes_any = any(item.kind is item.VAR_KEYWORD for item in arguments)
    names = {item.name for item in arguments}
    for way in ways:
        try:
            taken = {name: entry for name, entry in way.items() if takes_any or name in names}
            return way, call_without_data(module, function, taken, batch=1)
        except DataDependentError:
            return way, None
        except Exception:  # noqa: BLE001, S112 - the library's own code, which fails in any way on what it does not take
            continue
    return {}, None


def _count_features(features: Any, *, size: int | None) -> int:
    """How many places in a text the features of an image take; 0 where they are not of the size of its tokens'."""
    import torch

    found = getattr(features, "pooler_output", features)
    if isinstance(found, torch.Tensor):
        return found.numel() // max(found.shape[-1], 1) if size in {None, found.shape[-1]} else 0
    return sum(_count_features(each, size=size) for each in found) if isinstance(found, list | tuple) else 0
