"""Adds labels to a store one by one and says each key once it is committed: ``python adding_program.py STORE A B``."""

from __future__ import annotations

import sys

from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome


def label_of(number: int) -> Label:
    return Label(
        recipe=Recipe(
            collection="made-up",
            family=f"family {number % 3}",
            architecture="timm:resnet",
            arguments={"width": number},
            inputs=InputShapes(positional=(InputEntry(shape=(3, 32, 32)),)),
            batch=1,
        ),
        configuration=Configuration(batch=1),
        measurement=Measurement(
            outcome=Outcome.OK, device="cpu", measured_at="2026-01-01T00:00:00+00:00", latency_ms=number / 7
        ),
    )


def main() -> None:
    target, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with LabelStore.open(target) as store:
        print("ready", flush=True)  # noqa: T201
        for number in range(first, last):
            label = label_of(number)
            is_new = store.add(label)
            print(label.key, int(is_new), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
