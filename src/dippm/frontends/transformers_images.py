"""The images and videos that a model of transformers is read with where the caller gives none: one for each sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dippm.frontends.inputs import InputEntry
from dippm.graph import DType

__all__ = ["GRIDS", "image_ways", "is_image_certain", "takes_images"]

_Entries = Mapping[str, InputEntry]

#: Arguments that say how many patches an image has aside, where the patches of all images lie below each other.
GRIDS = ("image_grid_thw", "grid_thw")

_IMAGE_PIXELS = 224
# Models of patches take an image of any size, and most do not say one.
_PATCHED_IMAGE_PIXELS = 448
# Of those that do not say one either, some take none that is so small, or none that leaves a rest.
_MORE_PIXELS = (448, 640, 1024, 1536)
_MOST_PATCHES_ASIDE = 1024
_TILES = (1, 2, 3, 5)
_MERGES = ("spatial_merge_size", "merge_kernel_size", "merge_size")
_SIZES = ("image_size", "crop_size")
_FRAMES = ("num_frames", "frames_per_clip")
_VIDEO_FRAMES = 16
_IMAGE, _VIDEO = "pixel_values", "pixel_values_videos"
_RATIOS = "aspect_ratio_ids"
_PROMPT, _PROMPTED = "prompt_pixel_values", "prompt_masks"


def takes_images(parameters: Mapping[str, Any]) -> bool:
    """Whether a forward with these arguments takes images or videos."""
    return not parameters.keys().isdisjoint((_IMAGE, _VIDEO, *GRIDS))


def is_image_certain(config: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether the configuration tells how images are laid out, so that nothing need be tried.

    Args:
        config: The model's configuration.
        parameters: The arguments of its forward by name.
    """
    vision = _vision_of(config)
    is_told = _stated_size(vision, depth=0) is not None or "spatial_shapes" in parameters or _RATIOS in parameters
    return is_told and _frames(vision) is None and parameters.keys().isdisjoint(GRIDS) and _IMAGE in parameters


def image_ways(config: Any, parameters: Mapping[str, Any], *, has_features: bool) -> Iterator[_Entries]:
    """The ways in which a model may take an image, the usual ones first.

    Args:
        config: Its configuration.
        parameters: The arguments of its forward by name.
        has_features: Whether it makes features of the image that are put into a text.
    """
    vision = _vision_of(config)
    grid = next((name for name in GRIDS if name in parameters), None)
    if "spatial_shapes" in parameters:
        yield _padded_patches(vision)
    elif grid is not None:
        yield from _patches(vision, main=_IMAGE if _IMAGE in parameters else next(iter(parameters)), grid=grid)
    elif _PROMPT in parameters:
        yield _with_prompt(next(_images(vision)))
    elif _RATIOS in parameters:
        yield _tiles_of_ratio(vision)
    elif has_features:
        for image in _images(vision):
            yield from _tiles(image, has_sizes="image_sizes" in parameters)
    else:
        yield from _images_and_videos(vision, parameters)


def _vision_of(config: Any) -> Any:
    return getattr(config, "vision_config", None) or config


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
        _IMAGE: InputEntry(shape=(side * side, _channels(vision) * patch * patch)),
        "pixel_attention_mask": InputEntry(shape=(side * side,), dtype=DType.INT64, values=(1,) * (side * side)),
        "spatial_shapes": InputEntry(shape=(2,), dtype=DType.INT64, values=(side, side)),
    }


def _with_prompt(canvas: InputEntry) -> _Entries:
    """An image, and another one with what was found in it, which a model puts above the first on a canvas."""
    channels, height, width = canvas.shape
    half = InputEntry(shape=(channels, height // 2, width))
    return {_IMAGE: half, _PROMPT: half, _PROMPTED: half}


def _tiles_of_ratio(vision: Any) -> _Entries:
    """One image that is cut into as many tiles as there may be, and which of the known ratios of its sides that is."""
    tiles = int(getattr(vision, "max_num_tiles", None) or 1)
    ratios = [tuple(ratio) for ratio in getattr(vision, "supported_aspect_ratios", None) or [(1, tiles)]]
    fullest = min(ratios, key=lambda ratio: (-math.prod(ratio), abs(ratio[0] - ratio[1])))
    return {
        _IMAGE: InputEntry(shape=(1, tiles, *next(_images(vision)).shape)),
        _RATIOS: InputEntry(shape=(1,), dtype=DType.INT64, values=(ratios.index(fullest) + 1,)),
        "aspect_ratio_mask": InputEntry(shape=(1, tiles), dtype=DType.INT64, values=(1,) * tiles),
    }


def _tiles(image: InputEntry, *, has_sizes: bool) -> Iterator[_Entries]:
    """An image as it is, or as tiles with or without an overview, alone or with its height and width."""
    for shape in (image.shape, *((count, *image.shape) for count in _TILES)):
        pixels = {_IMAGE: InputEntry(shape=shape)}
        yield pixels
        if has_sizes:
            yield {**pixels, "image_sizes": InputEntry(shape=(2,), dtype=DType.INT64, values=image.shape[1:])}


def _images_and_videos(vision: Any, parameters: Mapping[str, Any]) -> Iterator[_Entries]:
    """Images, as frames of a video first where the model knows of some; two that are compared at last."""
    name = _IMAGE if _IMAGE in parameters else _VIDEO
    images, frames = list(_images(vision)), _frames(vision)
    if frames is not None or name == _VIDEO:
        for image in images:
            yield {name: InputEntry(shape=(frames or _VIDEO_FRAMES, *image.shape))}
    if name == _IMAGE:
        yield from ({name: image} for image in images)
        yield from ({name: InputEntry(shape=(2, *image.shape))} for image in images)


def _images(config: Any) -> Iterator[InputEntry]:
    """An image of the size that the configuration names; where it names none, also larger ones."""
    channels, stated = _channels(config), _stated_size(config, depth=0)
    if stated is not None:
        yield InputEntry(shape=(channels, *stated))
        return
    of_part = _stated_size(config, depth=2)
    sizes = [(side, side) for side in (_IMAGE_PIXELS, *_MORE_PIXELS)]
    for size in dict.fromkeys([*([of_part] if of_part else []), *sizes]):
        yield InputEntry(shape=(channels, *size))


def _stated_size(config: Any, *, depth: int) -> tuple[int, int] | None:
    """Height and width of the images that a configuration names, or one of its parts does.

    Args:
        config: The configuration.
        depth: How deep in it the part may be.
    """
    if (trained := _size_of_timm(config)) is not None:
        return trained[1], trained[2]
    size = next((size for name in _SIZES if (size := getattr(config, name, None))), None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
        return int(height), int(width)
    parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", {})) if depth else ()
    return next((found for part in parts if part and (found := _stated_size(part, depth=depth - 1))), None)


def _frames(config: Any) -> int | None:
    return next((frames for name in _FRAMES if isinstance(frames := getattr(config, name, None), int)), None)


def _size_of_timm(config: Any) -> tuple[int, int, int] | None:
    """Channels, height and width that a model of timm was trained with; None for any other."""
    trained = getattr(config, "pretrained_cfg", None)
    size = trained.get("input_size") if isinstance(trained, Mapping) else None
    return (int(size[0]), int(size[1]), int(size[2])) if size else None


def _channels(config: Any) -> int:
    if (trained := _size_of_timm(config)) is not None:
        return trained[0]
    names = ("num_channels", "in_channels", "in_chans")
    return next((count for name in names if isinstance(count := getattr(config, name, None), int)), 3)


def _side(size: Any) -> int:
    """The side of a square, which a configuration may give as one number or as several; 0 where it gives none."""
    if isinstance(size, list | tuple) and size:
        size = size[-1]
    return size if isinstance(size, int) else 0
