"""Models of the timm tables, and the same with an image of twice the side or with twice as many blocks."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import TYPE_CHECKING

from dippm.datasets.recipes.building import build
from dippm.datasets.recipes.recipe import Recipe
from dippm.frontends.inputs import InputShapes

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BlockCount", "deepen", "draw_models", "enlarge"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCount:
    """How a class of timm is told its number of blocks.

    Args:
        argument: Argument of its constructor.
        path: Where the blocks lie in the module: names of children, ``*`` and ``?`` for any.
    """

    argument: str
    path: str

    def of(self, module: nn.Module) -> int | tuple[int, ...] | None:
        """The number of blocks, one for each stage where a path with ``*`` or ``?`` names stages; None for none."""
        from torch import nn

        found = [module]
        for part in self.path.split("."):
            found = [child for each in found for name, child in each.named_children() if fnmatchcase(name, part)]
        counts = tuple(len(each) for each in found if isinstance(each, nn.Sequential | nn.ModuleList | nn.ModuleDict))
        if not counts:
            return None
        return counts if "*" in self.path or "?" in self.path else counts[0]


# Tried in this order; one whose argument the class refuses, or that does not double the blocks, is passed over.
_BLOCK_COUNTS = (
    BlockCount(argument="layers", path="layer?"),  # ResNet, ResNeXt, ResNeSt, Res2Net
    BlockCount(argument="layers", path="body.layer?"),  # TResNet
    BlockCount(argument="depths", path="stages.*.blocks"),  # ConvNeXt, DaViT, MaxViT, PVT v2
    BlockCount(argument="layers", path="stages.*.blocks"),  # ResNet v2, FastViT
    BlockCount(argument="layers", path="stages.*"),  # Sequencer
    BlockCount(argument="depth", path="stages.*.blocks"),  # RepViT
    BlockCount(argument="depths", path="layers.*.blocks"),  # Swin
    BlockCount(argument="depth", path="transformers.*.blocks"),  # PiT
    BlockCount(argument="serial_depths", path="serial_blocks?"),  # CoaT
    BlockCount(argument="block_config", path="features.denseblock?"),  # DenseNet
    BlockCount(argument="depth", path="stage?"),  # Visformer
    BlockCount(argument="depths", path="blocks.*"),  # Twins
    BlockCount(argument="depth", path="blocks"),  # ViT, BEiT, CaiT, XCiT, ConvMixer
)


def draw_models(recipes: Iterable[Recipe], *, seed: int = 0) -> list[Recipe]:
    """An order of models of which every beginning is spread as evenly over families as these have members.

    Args:
        recipes: What to draw from; of one architecture the smallest image is taken.
        seed: Decides the order of the families, and that of the models within each.
    """
    smallest: dict[str, Recipe] = {}
    for recipe in sorted(recipes, key=lambda recipe: (recipe.architecture, _pixels(recipe), recipe.key)):
        smallest.setdefault(recipe.architecture, recipe)
    families: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in smallest.values():
        families[recipe.family].append(recipe)
    draw = random.Random(seed)  # noqa: S311 - not a secret
    shuffled = [draw.sample(families[name], len(families[name])) for name in sorted(families)]
    draw.shuffle(shuffled)
    # Round by round one of each family.
    return [recipe for turn in zip_longest(*shuffled) for recipe in turn if recipe is not None]


def enlarge(recipe: Recipe) -> Recipe:
    """The same model for images of twice the height and width."""
    entries = tuple(
        replace(entry, shape=(*entry.shape[:-2], *(2 * side for side in entry.shape[-2:])))
        for entry in recipe.inputs.positional
    )
    return replace(recipe, inputs=InputShapes(positional=entries))


def deepen(recipe: Recipe) -> Recipe | None:
    """The same model with at least twice as many blocks in every stage, None where no argument of its class says so.

    Raises:
        DippmError: Whatever keeps the model itself from being built.
    """
    module, _ = build(recipe)
    for rule in _BLOCK_COUNTS:
        blocks = rule.of(module)
        if blocks is None:
            continue
        doubled = 2 * blocks if isinstance(blocks, int) else tuple(2 * count for count in blocks)
        deeper = replace(recipe, arguments={**recipe.arguments, rule.argument: doubled})
        try:
            reached = rule.of(build(deeper)[0])
        except Exception:  # noqa: BLE001, S112 - libraries raise what they like at an argument that is not theirs
            continue
        if reached is not None and _is_reached(reached, doubled):
            return deeper
    return None


def _is_reached(blocks: int | tuple[int, ...], wanted: int | tuple[int, ...]) -> bool:
    """Whether every stage has so many blocks: a class may swallow an argument, or read it in another way."""
    if isinstance(blocks, int) or isinstance(wanted, int):
        return blocks == wanted
    return len(blocks) == len(wanted) and all(count >= least for count, least in zip(blocks, wanted, strict=True))


def _pixels(recipe: Recipe) -> int:
    return max(entry.shape[-1] * entry.shape[-2] for entry in recipe.inputs.positional)
