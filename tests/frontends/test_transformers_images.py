"""The images and videos of models of transformers, from configurations without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.transformers_images import image_ways, is_image_certain, takes_images

_PIXELS = {"pixel_values": None}


def shapes_of(config: Any, parameters: dict[str, Any], *, has_features: bool = False) -> list[tuple[int, ...]]:
    ways = image_ways(config, parameters, has_features=has_features)
    return [next(iter(way.values())).shape for way in ways]


def test_which_models_take_images() -> None:
    assert takes_images(_PIXELS)
    assert takes_images({"pixel_values_videos": None})
    assert takes_images({"hidden_states": None, "grid_thw": None})
    assert not takes_images({"input_ids": None})


def test_an_image_of_a_known_size_is_certain() -> None:
    config = SimpleNamespace(image_size=[32, 64], num_channels=1)
    assert is_image_certain(config, _PIXELS)
    assert shapes_of(config, _PIXELS)[0] == (1, 32, 64)


def test_frames_of_a_video_come_first() -> None:
    config = SimpleNamespace(image_size=32, num_frames=8)
    assert not is_image_certain(config, _PIXELS)
    assert shapes_of(config, _PIXELS)[:2] == [(8, 3, 32, 32), (3, 32, 32)]
    clips = SimpleNamespace(crop_size=16, frames_per_clip=4)
    assert shapes_of(clips, {"pixel_values_videos": None}) == [(4, 3, 16, 16)]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_size_that_a_part_names_comes_before_usual_ones(depth: int) -> None:
    config = SimpleNamespace(image_size=96, sub_configs={})
    for _ in range(depth):
        config = SimpleNamespace(backbone_config=config, sub_configs={"backbone_config": object})
    assert not is_image_certain(config, _PIXELS)
    assert shapes_of(config, _PIXELS)[:2] == [(3, 96, 96), (3, 224, 224)]


def test_two_images_are_tried_at_last() -> None:
    shapes = shapes_of(SimpleNamespace(), _PIXELS)
    assert shapes[0] == (3, 224, 224)
    assert (3, 1536, 1536) in shapes
    assert shapes[shapes.index((2, 3, 224, 224)) :] == [(2, *shape) for shape in shapes if len(shape) == 3]


def test_an_image_that_goes_into_a_text_may_be_tiled() -> None:
    config = SimpleNamespace(vision_config=SimpleNamespace(image_size=32))
    assert shapes_of(config, _PIXELS, has_features=True)[:2] == [(3, 32, 32), (1, 3, 32, 32)]


def test_an_image_of_tiles_is_of_the_ratio_that_has_the_most() -> None:
    vision = SimpleNamespace(image_size=8, max_num_tiles=4, supported_aspect_ratios=[[1, 1], [1, 4], [2, 2], [4, 1]])
    parameters = {**_PIXELS, "aspect_ratio_ids": None}
    (way,) = image_ways(SimpleNamespace(vision_config=vision), parameters, has_features=False)
    assert way["pixel_values"].shape == (1, 4, 3, 8, 8)
    assert way["aspect_ratio_ids"].values == (3,)


def test_an_image_and_its_prompt_share_a_canvas() -> None:
    (way,) = image_ways(
        SimpleNamespace(image_size=[64, 32]), {**_PIXELS, "prompt_pixel_values": None}, has_features=False
    )
    assert {name: entry.shape for name, entry in way.items()} == dict.fromkeys(
        ["pixel_values", "prompt_pixel_values", "prompt_masks"], (3, 32, 32)
    )
