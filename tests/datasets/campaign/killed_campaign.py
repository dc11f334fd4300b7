"""A program that a test kills: a campaign over small recipes with the real store and a device that sleeps.

Arguments: store, journal of what the device measured, number of models, seconds per row, and the size in bytes past
which a file cannot grow, 0 for no such size.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.plan import Request, make_plan
from dippm.datasets.campaign.run import Campaign
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label_store import LabelStore
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.model_source import ModelSource

DEVICE = "Sleeping Device"


class SleepingDevice:
    """Measures by sleeping; how a configuration ends depends on the configuration alone."""

    busy_s = 0.0

    def __init__(self, journal: Path, row_s: float) -> None:
        self._journal = journal
        self._row_s = row_s

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for configuration in configurations:
            time.sleep(self._row_s)
            number = int(source.model_key, 16)
            outcome = Outcome.OK
            if number % 7 == 0 and configuration.batch >= 4:
                outcome = Outcome.OUT_OF_MEMORY
            # Few enough that no row of them makes the campaign give up.
            elif number % 23 == 0:
                outcome = Outcome.FAILED
            with self._journal.open("a", encoding="utf-8") as stream:
                stream.write("row\n")
            yield Measurement(outcome=outcome, device=DEVICE, measured_at="2026-01-01T00:00:00Z")


def main() -> None:
    store, journal, models, row_s, limit_bytes = sys.argv[1:]
    if int(limit_bytes):
        # Writing past it fails as on a full disk: Python ignores the signal that would end the process.
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit_bytes), int(limit_bytes)))
    recipes = [
        Recipe(
            collection="test",
            family=f"family{model % 3}",
            architecture="test:net",
            arguments={"width": model},
            inputs=InputShapes(positional=(InputEntry(shape=(8,)),)),
            batch=batch,
        )
        for model in range(int(models))
        for batch in (1, 2, 4, 8)
    ]
    plan = make_plan(recipes, [Request(conditions=Conditions())], device=DEVICE)
    with LabelStore.open(store) as labels:
        device = SleepingDevice(Path(journal), float(row_s))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        report = Campaign(plan, measurer=device, store=labels, known=labels.labels(device=DEVICE)).run()
    sys.stdout.write(f"{report.stopped} {report.measured} {report.not_tried}\n")


if __name__ == "__main__":
    main()
