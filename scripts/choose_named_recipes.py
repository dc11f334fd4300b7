"""Choose the recipes of the collection ``timm-named``: models that people know by name, of every file of timm.

Usage: ``python scripts/choose_named_recipes.py``. Of each file it takes models that stand for its range of sizes, and
those with group norms, which hardly any file has; of each model one batch, of at most 500 GMACs. Prints a line per
recipe: model, pixels, batch, family.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import dippm
from dippm.datasets.recipes.sampling import seeded
from dippm.errors import DippmError
from dippm.frontends.zoo import build

_LARGEST_PIXELS = 300
_LARGEST_M = 130.0
_MOST_GMACS = 500.0
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Held out of all collections but its own.
_HELD_OUT = "convnext"
_WITH_GROUP_NORMS = (
    "efficientnet_b0_gn",
    "efficientnet_b3_g8_gn",
    "regnety_040_sgn",
    "resnet50_gn",
    "resnetv2_50d_gn",
    "resnetv2_50x1_bit",
)


def main() -> None:
    """Choose and print."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    build("timm:resnet18")  # imports timm, with what it asks of torchvision
    import timm

    for family in sorted(timm.list_modules()):
        if family != _HELD_OUT:
            for name, pixels, gmacs in _choose(timm.list_models(module=family)):
                affordable = [batch for batch in _BATCHES if batch * gmacs <= _MOST_GMACS]
                batch = seeded("timm-named", name).choice(affordable or _BATCHES[:1])
                sys.stdout.write(f'("{name}", {pixels}, {batch}, "{family}"),\n')
                sys.stdout.flush()


def _choose(names: Sequence[str]) -> list[tuple[str, int, float]]:
    """Some of the models of a file: name, pixels and GMACs of a sample of each."""
    sized = []
    for name in names:
        try:
            module, inputs = build(f"timm:{name}")
        except DippmError:
            continue
        pixels = inputs.positional[0].shape[-1]
        parameters_m = sum(weight.numel() for weight in module.parameters()) / 1e6
        if pixels <= _LARGEST_PIXELS and parameters_m <= _LARGEST_M:
            sized.append((parameters_m, name, pixels))
    sized.sort()
    count = math.ceil(1.2 * math.sqrt(len(sized)))
    places = {int((place + 0.5) / count * len(sized)) for place in range(count)}
    chosen = []
    for place, (_, name, pixels) in enumerate(sized):
        if place in places or name in _WITH_GROUP_NORMS:
            try:
                (answer,) = dippm.predict(f"timm:{name}", batch=[1], device="H200")
            except DippmError:
                continue
            chosen.append((name, pixels, answer.macs / 1e9))
    return chosen


if __name__ == "__main__":
    main()
