"""Builders over timm's classes: the arguments that vary, in plain values."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

__all__ = [
    "build_convnext",
    "build_densenet",
    "build_efficientnet",
    "build_inception_v3",
    "build_inception_v4",
    "build_mobilenetv3",
    "build_poolformer",
    "build_resnet",
    "build_resnetv2",
    "build_swin",
    "build_vgg",
    "build_visformer",
    "build_vit",
]

_DECODE = "models._efficientnet_builder.decode_arch_def"
_RESNET_BLOCKS = {"basic": "models.resnet.BasicBlock", "bottleneck": "models.resnet.Bottleneck"}


def _timm(path: str) -> Any:
    """Something of timm by its path; timm's own types say less than it accepts."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"timm.{module}"), name)


def _make(path: str, **arguments: Any) -> nn.Module:
    module: nn.Module = _timm(path)(**arguments)
    return module


def build_efficientnet(
    *, blocks: tuple[str, ...], stem_size: int, num_features: int, act_layer: str, in_chans: int = 3
) -> nn.Module:
    """EfficientNet, MnasNet, MobileNet of versions 1 and 2: one block string per stage."""
    return _make(
        "models.efficientnet.EfficientNet",
        block_args=_timm(_DECODE)([[block] for block in blocks]),
        stem_size=stem_size,
        num_features=num_features,
        act_layer=act_layer,
        in_chans=in_chans,
    )


def build_mobilenetv3(*, blocks: tuple[str, ...], stem_size: int, num_features: int, act_layer: str) -> nn.Module:
    """MobileNetV3: as above, with a last 1x1 convolution and the head behind the pooling."""
    last = 6 * int(blocks[-1].partition("_c")[2].partition("_")[0])
    return _make(
        "models.mobilenetv3.MobileNetV3",
        block_args=_timm(_DECODE)([[block] for block in (*blocks, f"cn_r1_k1_s1_c{last}")]),
        stem_size=stem_size,
        num_features=num_features,
        act_layer=_timm("layers.get_act_layer")(act_layer),
        se_layer=partial(
            _timm("models._efficientnet_blocks.SqueezeExcite"),
            gate_layer="hard_sigmoid",
            force_act_layer=nn.ReLU,
            rd_round_fn=_timm("models._efficientnet_builder.round_channels"),
        ),
    )


def build_resnet(
    *,
    block: str,
    layers: tuple[int, ...],
    channels: tuple[int, ...] = (64, 128, 256, 512),
    cardinality: int = 1,
    base_width: int = 64,
    stem_type: str = "",
    stem_width: int = 64,
    avg_down: bool = False,
    squeeze: bool = False,
    in_chans: int = 3,
) -> nn.Module:
    """ResNet of version 1 with ``basic`` or ``bottleneck`` blocks."""
    return _make(
        "models.resnet.ResNet",
        block=_timm(_RESNET_BLOCKS[block]),
        layers=layers,
        channels=channels,
        cardinality=cardinality,
        base_width=base_width,
        stem_type=stem_type,
        stem_width=stem_width,
        avg_down=avg_down,
        block_args={"attn_layer": "se"} if squeeze else None,
        in_chans=in_chans,
    )


def build_resnetv2(*, layers: tuple[int, ...], channels: tuple[int, ...], in_chans: int) -> nn.Module:
    """ResNet of version 2: normalisation and activation before each convolution."""
    return _make(
        "models.resnetv2.ResNetV2",
        layers=layers,
        channels=channels,
        in_chans=in_chans,
        conv_layer=_timm("layers.create_conv2d"),
        norm_layer=_timm("layers.BatchNormAct2d"),
    )


def build_vgg(
    *, convolutions: tuple[int, ...], channels: tuple[int, ...], mlp_ratio: float, batch_norm: bool
) -> nn.Module:
    """VGG, each stage so many convolutions and a max-pooling."""
    plan: list[Any] = []
    for count, width in zip(convolutions, channels, strict=True):
        plan += [width] * count + ["M"]
    return _make("models.vgg.VGG", cfg=plan, mlp_ratio=mlp_ratio, norm_layer=nn.BatchNorm2d if batch_norm else None)


def build_densenet(*, growth_rate: int, block_config: tuple[int, ...], bn_size: int, stem_type: str) -> nn.Module:
    """DenseNet."""
    return _make(
        "models.densenet.DenseNet",
        growth_rate=growth_rate,
        block_config=block_config,
        bn_size=bn_size,
        stem_type=stem_type,
    )


def build_convnext(
    *, depths: tuple[int, ...], dims: tuple[int, ...], kernel_sizes: int, conv_mlp: bool, use_grn: bool
) -> nn.Module:
    """ConvNeXt; version 2 has global response normalisation in place of layer scale."""
    return _make(
        "models.convnext.ConvNeXt",
        depths=depths,
        dims=dims,
        kernel_sizes=kernel_sizes,
        conv_mlp=conv_mlp,
        use_grn=use_grn,
        ls_init_value=None if use_grn else 1e-6,
    )


def build_swin(
    *,
    img_size: int,
    embed_dim: int,
    depths: tuple[int, ...],
    num_heads: tuple[int, ...],
    window_size: int,
    mlp_ratio: float,
) -> nn.Module:
    """Swin."""
    return _make(
        "models.swin_transformer.SwinTransformer",
        img_size=img_size,
        embed_dim=embed_dim,
        depths=depths,
        num_heads=num_heads,
        window_size=window_size,
        mlp_ratio=mlp_ratio,
        drop_path_rate=0.0,
    )


def build_vit(
    *,
    img_size: int,
    patch_size: int,
    embed_dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float,
    qkv_bias: bool,
    global_pool: str,
) -> nn.Module:
    """ViT, with a class token where it is pooled by it."""
    return _make(
        "models.vision_transformer.VisionTransformer",
        img_size=img_size,
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        qkv_bias=qkv_bias,
        global_pool=global_pool,
        class_token=global_pool == "token",
    )


def build_visformer(
    *,
    img_size: int,
    init_channels: int,
    embed_dim: int,
    depth: tuple[int, ...],
    num_heads: int,
    mlp_ratio: float,
    attn_stage: str,
    spatial_conv: str,
    group: int,
) -> nn.Module:
    """Visformer, normalised by batch as its authors published it."""
    return _make(
        "models.visformer.Visformer",
        img_size=img_size,
        init_channels=init_channels,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        attn_stage=attn_stage,
        spatial_conv=spatial_conv,
        group=group,
        norm_layer=nn.BatchNorm2d,
        embed_norm=nn.BatchNorm2d,
        conv_init=True,
    )


def build_poolformer(*, depths: tuple[int, ...], dims: tuple[int, ...], pool_size: int, version: int) -> nn.Module:
    """PoolFormer; version 2 drops biases and scales the residuals of its last stages."""
    is_first = version == 1
    return _make(
        "models.metaformer.MetaFormer",
        depths=depths,
        dims=dims,
        pool_size=pool_size,
        downsample_norm=None if is_first else _timm("models.metaformer.LayerNorm2dNoBias"),
        mlp_act=nn.GELU if is_first else _timm("models.metaformer.StarReLU"),
        mlp_bias=is_first,
        norm_layers=_timm("layers.GroupNorm1") if is_first else _timm("models.metaformer.LayerNorm2dNoBias"),
        layer_scale_init_values=1e-5 if is_first else None,
        res_scale_init_values=None if is_first else (None, None, 1.0, 1.0),
        use_mlp_head=False,
    )


def build_inception_v3(*, in_chans: int) -> nn.Module:
    """Inception-v3 without its auxiliary head."""
    return _make("models.inception_v3.InceptionV3", in_chans=in_chans)


def build_inception_v4(*, in_chans: int) -> nn.Module:
    """Inception-v4."""
    return _make("models.inception_v4.InceptionV4", in_chans=in_chans)
