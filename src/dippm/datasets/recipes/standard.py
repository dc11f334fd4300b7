"""Models that everyone knows, at sizes that a core of a CPU runs in a second: what a predictor for CPUs is first asked.

The small models of ``cpu-small`` hardly leave a CPU's caches; these have images of 224 pixels and their usual width.
"""

from __future__ import annotations

from dippm.datasets.recipes.ordering import interleave
from dippm.datasets.recipes.recipe import Recipe
from dippm.frontends.inputs import InputEntry, InputShapes

__all__ = ["recipes"]

_COLLECTION = "cpu-standard"
_INPUTS = InputShapes(positional=(InputEntry(shape=(3, 224, 224)),))
# Model, family, batches: the larger the model, the fewer samples.
_CHOSEN: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("torchvision:alexnet", "alexnet", (1, 8)),
    ("timm:convnext_atto", "convnext", (1, 4)),
    ("timm:convnext_tiny", "convnext", (1, 2)),
    ("timm:densenet121", "densenet", (1, 2, 6)),
    ("timm:efficientnet_b0", "efficientnet", (1, 2, 8)),
    ("timm:efficientnet_lite0", "efficientnet", (1, 4)),
    ("torchvision:googlenet", "inception", (1, 2, 8)),
    ("timm:inception_v3", "inception", (1, 2)),
    ("timm:mixer_s32_224", "mixer", (1, 2, 8)),
    ("timm:mnasnet_100", "mnasnet", (1, 4, 16)),
    ("timm:mobilenetv2_100", "mobilenet", (1, 2, 8)),
    ("timm:mobilenetv3_large_100", "mobilenet", (1, 2, 8)),
    ("timm:mobilenetv3_small_100", "mobilenet", (1, 2, 8, 16)),
    ("timm:poolformer_s12", "poolformer", (1, 2)),
    ("timm:regnetx_004", "regnet", (1, 2, 8)),
    ("timm:regnety_016", "regnet", (1, 4)),
    ("timm:resnet18", "resnet", (1, 2, 8)),
    ("timm:resnet50", "resnet", (1, 2, 6)),
    ("timm:resnext50_32x4d", "resnet", (1, 2)),
    ("torchvision:shufflenet_v2_x1_0", "shufflenet", (1, 2, 8, 16)),
    ("torchvision:squeezenet1_0", "squeezenet", (1, 2, 8)),
    ("timm:swin_tiny_patch4_window7_224", "swin", (1, 2)),
    ("torchvision:vgg11", "vgg", (1, 2)),
    ("timm:vgg16_bn", "vgg", (1,)),
    ("timm:vit_small_patch16_224", "vit", (1, 2)),
    ("timm:vit_tiny_patch16_224", "vit", (1, 2, 8)),
)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """The recipes in stratified order.

    Args:
        seed: Another seed gives another order of the same recipes.
    """
    families: dict[str, dict[str, tuple[tuple[Recipe, ...], float]]] = {}
    for name, family, batches in _CHOSEN:
        own = tuple(
            Recipe(collection=_COLLECTION, family=family, architecture=f"zoo:{name}", inputs=_INPUTS, batch=batch)
            for batch in batches
        )
        families.setdefault(family, {})[name] = own, float(max(batches))
    models = {family: list(members.values()) for family, members in families.items()}
    return interleave(models, collection=_COLLECTION, seed=seed)
