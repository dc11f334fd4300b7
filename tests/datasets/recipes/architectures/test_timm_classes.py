"""The builders at the usual arguments give the models that timm itself gives by name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if find_spec("timm") is None or find_spec("torchvision") is None:
    pytest.skip("needs timm and torchvision", allow_module_level=True)

from dippm.datasets.recipes.architectures import timm_classes  # noqa: E402

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet18": ("build_resnet", {"block": "basic", "layers": (2, 2, 2, 2)}),
    "resnet50": ("build_resnet", {"block": "bottleneck", "layers": (3, 4, 6, 3)}),
    "resnext50_32x4d": (
        "build_resnet",
        {"block": "bottleneck", "layers": (3, 4, 6, 3), "cardinality": 32, "base_width": 4},
    ),
    "seresnet50": ("build_resnet", {"block": "bottleneck", "layers": (3, 4, 6, 3), "squeeze": True}),
    "resnetv2_50": (
        "build_resnetv2",
        {"layers": (3, 4, 6, 3), "channels": (256, 512, 1024, 2048), "in_chans": 3},
    ),
    "vgg16": (
        "build_vgg",
        {
            "convolutions": (2, 2, 3, 3, 3),
            "channels": (64, 128, 256, 512, 512),
            "mlp_ratio": 1.0,
            "batch_norm": False,
        },
    ),
    "vgg11_bn": (
        "build_vgg",
        {
            "convolutions": (1, 1, 2, 2, 2),
            "channels": (64, 128, 256, 512, 512),
            "mlp_ratio": 1.0,
            "batch_norm": True,
        },
    ),
    "densenet121": (
        "build_densenet",
        {"growth_rate": 32, "block_config": (6, 12, 24, 16), "bn_size": 4, "stem_type": ""},
    ),
    "convnext_tiny": (
        "build_convnext",
        {"depths": (3, 3, 9, 3), "dims": (96, 192, 384, 768), "kernel_sizes": 7, "conv_mlp": False, "use_grn": False},
    ),
    "convnextv2_tiny": (
        "build_convnext",
        {"depths": (3, 3, 9, 3), "dims": (96, 192, 384, 768), "kernel_sizes": 7, "conv_mlp": False, "use_grn": True},
    ),
    "swin_tiny_patch4_window7_224": (
        "build_swin",
        {
            "img_size": 224,
            "embed_dim": 96,
            "depths": (2, 2, 6, 2),
            "num_heads": (3, 6, 12, 24),
            "window_size": 7,
            "mlp_ratio": 4.0,
        },
    ),
    "vit_base_patch16_224": (
        "build_vit",
        {
            "img_size": 224,
            "patch_size": 16,
            "embed_dim": 768,
            "depth": 12,
            "num_heads": 12,
            "mlp_ratio": 4.0,
            "qkv_bias": True,
            "global_pool": "token",
        },
    ),
    "visformer_small": (
        "build_visformer",
        {
            "img_size": 224,
            "init_channels": 32,
            "embed_dim": 384,
            "depth": (7, 4, 4),
            "num_heads": 6,
            "mlp_ratio": 4.0,
            "attn_stage": "011",
            "spatial_conv": "100",
            "group": 8,
        },
    ),
    "poolformer_s12": (
        "build_poolformer",
        {"depths": (2, 2, 6, 2), "dims": (64, 128, 320, 512), "pool_size": 3, "version": 1},
    ),
    "poolformerv2_s12": (
        "build_poolformer",
        {"depths": (2, 2, 6, 2), "dims": (64, 128, 320, 512), "pool_size": 3, "version": 2},
    ),
    "inception_v3": ("build_inception_v3", {"in_chans": 3}),
    "inception_v4": ("build_inception_v4", {"in_chans": 3}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _with_torchvision() -> None:
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()


def _shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
    return sorted(tuple(tensor.shape) for tensor in module.parameters())


@pytest.mark.parametrize("name", _MODELS)
def test_weights_are_those_of_timms_own(name: str) -> None:
    import timm

    builder, arguments = _MODELS[name]
    assert _shapes(getattr(timm_classes, builder)(**arguments)) == _shapes(timm.create_model(name))


def test_a_block_string_is_a_stage() -> None:
    module: Any = timm_classes.build_efficientnet(
        blocks=("ds_r1_k3_s1_c16", "ir_r2_k5_s2_e6_c24_se0.25"), stem_size=32, num_features=1280, act_layer="relu"
    )
    assert [len(stage) for stage in module.blocks] == [1, 2]
    assert module.blocks[1][0].conv_dw.weight.shape == (96, 1, 5, 5)
    assert module(torch.empty(1, 3, 64, 64)).shape == (1, 1000)


def test_the_last_convolution_of_mobilenet_v3_is_six_times_its_last_stage() -> None:
    module: Any = timm_classes.build_mobilenetv3(
        blocks=("ds_r1_k3_s1_c16", "ir_r2_k5_s2_e3_c40_se0.25"),
        stem_size=16,
        num_features=1280,
        act_layer="hard_swish",
    )
    assert module.blocks[-1][0].conv.weight.shape == (240, 40, 1, 1)
    assert module.conv_head.weight.shape == (1280, 240, 1, 1)
