"""Swin, ViT, Visformer and PoolFormer."""

from __future__ import annotations

import random

from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.datasets.recipes.spaces.shapes import image, round_channels

__all__ = ["estimate_encoder", "sample_poolformer", "sample_swin", "sample_visformer", "sample_vit"]


def estimate_encoder(tally: Tally, *, width: int, depth: float, tokens: float, span: float, mlp_ratio: float) -> None:
    """Add transformer layers to a tally."""
    tally.linear(width, 3 * width, tokens, repeats=depth)
    tally.attention(width, tokens, span, repeats=depth)
    tally.linear(width, width, tokens, repeats=depth)
    hidden = int(width * mlp_ratio)
    tally.linear(width, hidden, tokens, repeats=depth)
    tally.linear(hidden, width, tokens, repeats=depth)
    # Layer normalisations and residual sums.
    tally.keep(4 * width, tokens * depth)


def sample_swin(rng: random.Random, reach: Reach) -> Draw:
    """Swin with other widths, head sizes, depths and windows."""
    size = reach.draw_size(rng)
    head = rng.choice((16, 24, 32))
    heads = max(1, round(96 * reach.draw_width(rng) / head))
    width = heads * head
    depths = tuple(
        2 * max(1, depth // 2) for depth in reach.draw_depths(rng, rng.choice(((2, 2, 6, 2), (2, 2, 18, 2))))
    )
    window = rng.choice((2, 4) if reach.is_small else (4, 7, 8, 12))
    ratio = rng.choice((2.0, 3.0, 4.0))
    tally = Tally()
    tokens = size * size / 16
    tally.conv(3, width, 4, tokens)
    for stage, depth in enumerate(depths):
        factor = 2**stage
        if stage:
            tokens /= 4
            tally.linear(2 * width * factor, width * factor, tokens)
        estimate_encoder(
            tally,
            width=width * factor,
            depth=depth,
            tokens=tokens,
            span=min(tokens, window * window),
            mlp_ratio=ratio,
        )
    return Draw(
        architecture="timm:swin",
        arguments={
            "img_size": size,
            "embed_dim": width,
            "depths": depths,
            "num_heads": tuple(heads * 2**stage for stage in range(4)),
            "window_size": window,
            "mlp_ratio": ratio,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )


def sample_vit(rng: random.Random, reach: Reach) -> Draw:
    """ViT with other widths, depths, head sizes, patches, and pooled by token or by mean."""
    patch = rng.choice((8, 16) if reach.is_small else (14, 16, 16, 32))
    size = max(2, round(reach.draw_size(rng) / patch)) * patch
    head = rng.choice((32, 64, 64))
    heads = max(1, round(rng.choice((192, 384, 768, 1024)) * reach.draw_width(rng) / head))
    width = heads * head
    (depth,) = reach.draw_depths(rng, (12,))
    ratio = rng.choice((2.0, 3.0, 4.0))
    pool = rng.choice(("token", "avg"))
    tally = Tally()
    tokens = (size // patch) ** 2 + (pool == "token")
    tally.conv(3, width, patch, tokens)
    estimate_encoder(tally, width=width, depth=depth, tokens=tokens, span=tokens, mlp_ratio=ratio)
    tally.linear(width, 1000)
    return Draw(
        architecture="timm:vit",
        arguments={
            "img_size": size,
            "patch_size": patch,
            "embed_dim": width,
            "depth": depth,
            "num_heads": heads,
            "mlp_ratio": ratio,
            "qkv_bias": rng.random() < 0.8,
            "global_pool": pool,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )


def sample_visformer(rng: random.Random, reach: Reach) -> Draw:
    """Visformer: a convolutional first stage, then two of attention, or attention in the last alone."""
    size = reach.draw_size(rng)
    heads = max(1, round(6 * reach.draw_width(rng)))
    width = heads * rng.choice((48, 64))
    depths = reach.draw_depths(rng, (7, 4, 4))
    stem = round_channels(rng.choice((16, 32)) * reach.draw_width(rng))
    ratio = rng.choice((2.0, 3.0, 4.0))
    attention = rng.choice(("011", "011", "001"))
    convolution = rng.choice(("100", "110"))
    group = rng.choice((4, 8))
    tally = Tally()
    positions = size * size / 4
    tally.conv(3, stem, 7, positions)
    inputs = stem
    for stage, depth in enumerate(depths):
        positions /= 16 if stage == 0 else 4
        dim = width * 2**stage // 2
        tally.conv(inputs, dim, 4 if stage == 0 else 2, positions)
        if attention[stage] == "1":
            tally.linear(dim, 4 * dim, positions, repeats=depth)
            tally.attention(dim, positions, positions, repeats=depth)
        hidden = 2 * dim if convolution[stage] == "1" else int(dim * ratio)
        if convolution[stage] == "1":
            tally.conv(hidden, hidden, 3, positions, groups=group, repeats=depth)
        tally.conv(dim, hidden, 1, positions, repeats=depth)
        tally.conv(hidden, dim, 1, positions, repeats=depth)
        inputs = dim
    tally.linear(inputs, 1000)
    return Draw(
        architecture="timm:visformer",
        arguments={
            "img_size": size,
            "init_channels": stem,
            "embed_dim": width,
            "depth": depths,
            "num_heads": heads,
            "mlp_ratio": ratio,
            "attn_stage": attention,
            "spatial_conv": convolution,
            "group": group,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )


def sample_poolformer(rng: random.Random, reach: Reach) -> Draw:
    """PoolFormer of version 1 or 2 with other depths, widths and pooling windows."""
    size, width = reach.draw_size(rng), reach.draw_width(rng)
    depths = reach.draw_depths(rng, rng.choice(((2, 2, 6, 2), (4, 4, 12, 4), (6, 6, 18, 6))))
    dims = tuple(
        round_channels(dim * width, divisor=16) for dim in rng.choice(((64, 128, 320, 512), (96, 192, 384, 768)))
    )
    tally = Tally()
    positions = size * size / 16
    inputs, kernel = 3, 7
    for stage, (depth, dim) in enumerate(zip(depths, dims, strict=True)):
        if stage:
            positions /= 4
        tally.conv(inputs, dim, kernel, positions)
        inputs, kernel = dim, 3
        tally.conv(dim, 4 * dim, 1, positions, repeats=depth)
        tally.conv(4 * dim, dim, 1, positions, repeats=depth)
        tally.keep(4 * dim, positions * depth)
    tally.linear(inputs, 1000)
    return Draw(
        architecture="timm:poolformer",
        arguments={
            "depths": depths,
            "dims": dims,
            "pool_size": rng.choice((3, 3, 5, 7)),
            "version": rng.choice((1, 1, 2)),
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )
