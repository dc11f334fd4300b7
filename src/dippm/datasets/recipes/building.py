"""From a recipe to a module: the registry of everything that a recipe may name, and the libraries' models by name.

Importing this module imports no framework; :func:`build` imports the one file that it needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import MissingExtraError, UnsupportedError
from dippm.frontends import zoo
from dippm.frontends.inputs import InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RecipeSource", "build", "list_architectures"]

_HOME = "dippm.datasets.recipes.architectures"
# Name that a recipe gives: file under architectures/, and what in it is called with the recipe's arguments.
_REGISTRY: Mapping[str, tuple[str, str]] = {
    "timm:convnext": ("timm_classes", "build_convnext"),
    "timm:densenet": ("timm_classes", "build_densenet"),
    "timm:efficientnet": ("timm_classes", "build_efficientnet"),
    "timm:inception_v3": ("timm_classes", "build_inception_v3"),
    "timm:inception_v4": ("timm_classes", "build_inception_v4"),
    "timm:mobilenetv3": ("timm_classes", "build_mobilenetv3"),
    "timm:poolformer": ("timm_classes", "build_poolformer"),
    "timm:resnet": ("timm_classes", "build_resnet"),
    "timm:resnetv2": ("timm_classes", "build_resnetv2"),
    "timm:swin": ("timm_classes", "build_swin"),
    "timm:vgg": ("timm_classes", "build_vgg"),
    "timm:visformer": ("timm_classes", "build_visformer"),
    "timm:vit": ("timm_classes", "build_vit"),
    "dnnperf:alexnet": ("alexnet", "AlexNet"),
    "dnnperf:cells": ("cell_network", "CellNetwork"),
    "dnnperf:chain": ("chain", "Chain"),
    "dnnperf:inception_v1": ("inception_v1", "InceptionV1"),
    "dnnperf:lenet": ("lenet", "LeNet"),
    "dnnperf:overfeat": ("overfeat", "OverFeat"),
    "dnnperf:recurrent": ("recurrent", "RecurrentClassifier"),
    "dnnperf:vgg": ("vgg", "VGG"),
    "hf:bert": ("hf_classes", "build_bert"),
    "hf:gpt2": ("hf_classes", "build_gpt2"),
    "hf:llama": ("hf_classes", "build_llama"),
    "hf:vit": ("hf_classes", "build_vit"),
    "dippm:detector": ("detector", "PyramidDetector"),
    "dippm:unet": ("unet", "UNet"),
}
_PACKAGES = {"timm": "timm", "hf": "transformers", "dippm:detector": "timm"}


# Before the name of a library's own model, as in "zoo:timm:resnet50": what published tables name.
_ZOO = "zoo:"


def list_architectures() -> tuple[str, ...]:
    """Names that a recipe may give as its architecture, beside ``zoo:`` and a library's model."""
    return tuple(sorted(_REGISTRY))


def build(recipe: Recipe, device: str = "meta") -> tuple[nn.Module, InputShapes]:
    """Build the model of a recipe with random weights.

    Args:
        recipe: What to build; its batch does not matter.
        device: Torch device on which the tensors are made, ``"meta"`` for shapes without memory.

    Returns:
        The module in evaluation mode, and the shapes of its inputs per sample.

    Raises:
        UnsupportedError: ``recipe.architecture_unknown``, or ``recipe.build_failed`` where the architecture refuses
            the arguments.
        MissingExtraError: where PyTorch or the library with the model is not installed.
    """
    if recipe.architecture.startswith(_ZOO):
        return _build_from_zoo(recipe, device), recipe.inputs
    entry = _REGISTRY.get(recipe.architecture)
    if entry is None:
        raise UnsupportedError(
            f"No recipe can name the architecture '{recipe.architecture}'.",
            code="recipe.architecture_unknown",
            cure=f"Known are {', '.join(list_architectures())}, and {_ZOO}timm:NAME and the like.",
        )
    library = _PACKAGES.get(recipe.architecture) or _PACKAGES.get(recipe.architecture.partition(":")[0])
    for package in ("torch", library):
        if package is not None and find_spec(package) is None:
            raise MissingExtraError(package=package, extra="zoo", purpose=f"build {recipe.architecture}")
    import torch

    # Libraries warn of their own deprecations while they are imported; the filter is the process's.
    with PROCESS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library is not None and find_spec("torchvision") is not None:
            from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

            import_torchvision_ops()
        file, name = entry
        definition = getattr(import_module(f"{_HOME}.{file}"), name)
        try:
            with torch.device(device):
                module: nn.Module = definition(**recipe.arguments)
        except (TypeError, ValueError, KeyError, AssertionError) as exc:
            raise UnsupportedError(
                f"{recipe.architecture} cannot be built with {dict(recipe.arguments)!r:.300}: {exc}",
                code="recipe.build_failed",
            ) from exc
    return module.eval(), recipe.inputs


def _build_from_zoo(recipe: Recipe, device: str) -> nn.Module:
    name = recipe.architecture.removeprefix(_ZOO)
    module, default = zoo.build(name, device=device, options=recipe.arguments)
    size = [entry.shape for entry in recipe.inputs.positional]
    if name.startswith("timm:") and size != [entry.shape for entry in default.positional]:
        # Classes with position embeddings are built for one image size; the others take any, and no such argument.
        with suppress(UnsupportedError):
            module, _ = zoo.build(name, device=device, options={**recipe.arguments, "img_size": size[0][1:]})
    return module


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """The model of a recipe, for the process that measures it.

    Args:
        recipe: What to build.
    """

    recipe: Recipe

    @property
    def name(self) -> str:
        """``collection/family/key``."""
        return f"{self.recipe.collection}/{self.recipe.family}/{self.recipe.key}"

    @property
    def model_key(self) -> str:
        """Equal for recipes that differ only in their batch."""
        return self.recipe.model_key

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        """Build the model on a device; see :func:`build`."""
        return build(self.recipe, device)
