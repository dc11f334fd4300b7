"""A program that a test disturbs: a campaign over small recipes with the real store, on the devices of a Ray cluster.

Arguments: address of the cluster, store, journal to which every measuring process adds its id and the row's outcome,
number of models, and seconds per row. Rows take no time any more when a file ``hurry`` lies beside the journal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dippm.cluster import campaign
from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.fleet_run import FleetCampaign
from dippm.datasets.campaign.plan import Request, make_plan
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label_store import LabelStore
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.model_source import ModelSource


class SleepingDevice:
    """Measures by sleeping; how a configuration ends, and its latency, depend on the configuration alone."""

    device_name = "Sleeping Device"

    def __init__(self, journal: Path, row_s: float) -> None:
        self._journal = journal
        self._row_s = row_s
        self.busy_s = 0.0

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for configuration in configurations:
            with self._journal.open("a", encoding="utf-8") as stream:
                stream.write(f"{os.getpid()}\n")
            if not self._journal.with_name("hurry").exists():
                time.sleep(self._row_s)
            self.busy_s += self._row_s
            number = int(source.model_key, 16)
            outcome = Outcome.OK
            if number % 7 == 0 and configuration.batch >= 4:
                outcome = Outcome.OUT_OF_MEMORY
            elif number % 23 == 0:
                outcome = Outcome.FAILED
            yield Measurement(
                outcome=outcome,
                device=self.device_name,
                measured_at="2026-01-01T00:00:00Z",
                latency_ms=number % 1000 + configuration.batch if outcome is Outcome.OK else None,
            )


@dataclass(frozen=True)
class MakeSleepingDevice:
    """Makes one."""

    journal: Path
    row_s: float

    def __call__(self) -> SleepingDevice:
        return SleepingDevice(self.journal, self.row_s)


def main() -> None:
    address, store, journal, models, row_s = sys.argv[1:]
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
    # A silent process is found out while a test waits.
    campaign._PULSE_EVERY_S, campaign._PULSE_LIMIT_S = 1.0, 5.0
    make = MakeSleepingDevice(Path(journal), float(row_s))
    with LabelStore.open(store) as labels, campaign.ray_fleet(address, make, device="cpu") as fleet:
        plan = make_plan(recipes, [Request(conditions=Conditions())], device=fleet.device_name)
        known = labels.labels(device=plan.device)
        sys.stdout.write(f"ready {len(fleet.members())}\n")
        sys.stdout.flush()
        report = FleetCampaign(plan, fleet=fleet, store=labels, known=known).run()
    tally = report.fleet
    assert tally is not None
    sys.stdout.write(f"{report.stopped} {report.measured} {report.not_tried} {tally.devices} {tally.lost}\n")


if __name__ == "__main__":
    main()
