"""BERT, GPT-2, Llama-style decoders and ViT by their configurations."""

from __future__ import annotations

import random

from dippm.datasets.recipes.recipe import Argument
from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.datasets.recipes.spaces.attention import estimate_encoder
from dippm.datasets.recipes.spaces.shapes import image, round_channels
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType

__all__ = ["sample_bert", "sample_gpt2", "sample_llama", "sample_vit"]

_LENGTHS = (32, 64, 128, 256, 384, 512, 768, 1024, 2048, 4096)
_SMALL_LENGTHS = (16, 32, 64)
_FEWEST_POSITIONS = 512
_WIDTHS = (256, 512, 768, 1024)
# Long sequences go with narrow models: a wide one at 4096 leaves no room for a second sample in a call.
_LONG = 2048
_WIDTHS_WHEN_LONG = (256, 512)


def _draw_width(rng: random.Random, reach: Reach, widths: tuple[int, ...] = _WIDTHS) -> tuple[int, int]:
    """Width, a multiple of the number of heads, and heads."""
    head = rng.choice((16, 32) if reach.is_small else (32, 64, 64, 128))
    heads = max(1, round(rng.choice(widths) * reach.draw_width(rng) / head))
    return heads * head, heads


def _draw_text(
    rng: random.Random, reach: Reach, *, architecture: str, vocabularies: tuple[int, ...], is_gated: bool = False
) -> Draw:
    length = rng.choice(_SMALL_LENGTHS if reach.is_small else _LENGTHS)
    width, heads = _draw_width(rng, reach, _WIDTHS_WHEN_LONG if length >= _LONG else _WIDTHS)
    (layers,) = reach.draw_depths(rng, (12,))
    vocabulary = 500 if reach.is_small else rng.choice(vocabularies)
    ratio = rng.choice((2, 8 / 3, 3.5)) if is_gated else rng.choice((2, 3, 4, 4))
    intermediate = round_channels(width * ratio, divisor=16)
    has_head = rng.random() < 0.5
    positions = max(_FEWEST_POSITIONS, length)
    tally = Tally()
    tally.embed(vocabulary, width, length)
    # A gated layer has three products where a plain one has two.
    mlp_ratio = intermediate / width * (1.5 if is_gated else 1)
    estimate_encoder(tally, width=width, depth=layers, tokens=length, span=length, mlp_ratio=mlp_ratio)
    if has_head:
        tally.linear(width, vocabulary, length)
    arguments: dict[str, Argument] = {
        "hidden": width,
        "layers": layers,
        "heads": heads,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
        "positions": positions,
        "head": has_head,
    }
    if is_gated:
        arguments["key_value_heads"] = rng.choice([count for count in (1, 2, 4, 8, heads) if heads % count == 0])
    return Draw(
        architecture=architecture,
        arguments=arguments,
        inputs=InputShapes(named={"input_ids": InputEntry(shape=(length,), dtype=DType.INT64)}),
        cost=tally.result(),
    )


def sample_bert(rng: random.Random, reach: Reach) -> Draw:
    """BERT with its pooler, or with the head of masked language modelling."""
    return _draw_text(rng, reach, architecture="hf:bert", vocabularies=(8192, 30522))


def sample_gpt2(rng: random.Random, reach: Reach) -> Draw:
    """GPT-2 with or without its language-model head."""
    return _draw_text(rng, reach, architecture="hf:gpt2", vocabularies=(8192, 50257))


def sample_llama(rng: random.Random, reach: Reach) -> Draw:
    """A decoder with rotary positions, gated layers and grouped key and value heads."""
    return _draw_text(rng, reach, architecture="hf:llama", vocabularies=(16384, 32000, 49152), is_gated=True)


def sample_vit(rng: random.Random, reach: Reach) -> Draw:
    """ViT as transformers has it."""
    patch = rng.choice((8, 16) if reach.is_small else (14, 16, 32))
    size = max(2, round(reach.draw_size(rng) / patch)) * patch
    width, heads = _draw_width(rng, reach)
    (layers,) = reach.draw_depths(rng, (12,))
    intermediate = round_channels(width * rng.choice((2, 3, 4)), divisor=16)
    tokens = (size // patch) ** 2 + 1
    tally = Tally()
    tally.conv(3, width, patch, tokens)
    estimate_encoder(tally, width=width, depth=layers, tokens=tokens, span=tokens, mlp_ratio=intermediate / width)
    return Draw(
        architecture="hf:vit",
        arguments={
            "hidden": width,
            "layers": layers,
            "heads": heads,
            "intermediate": intermediate,
            "image_size": size,
            "patch_size": patch,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )
