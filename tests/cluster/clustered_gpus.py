"""A program that loses processes on GPUs of a Ray cluster, one of which is set aside; no GPU is needed.

It prints, as JSON, the machine and GPU of the one that is set aside, and those of all that measure before and after the
processes on its machine were killed. Argument: address of the cluster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from dippm.cluster import campaign
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome


class TellingDevice:
    """Measures nothing, and tells where it stands."""

    device_name = "Telling Device"
    busy_s = 0.0

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        import ray

        node_id = ray.get_runtime_context().get_node_id()
        where = json.dumps([node_id, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()])
        for _ in configurations:
            yield Measurement(outcome=Outcome.OK, message=where, device=self.device_name, measured_at="")


def ask_all(fleet: campaign.RayFleet) -> dict[str, tuple[str, str, int]]:
    """Machine, GPU and process of every member, by its place."""
    source: Any = None
    for member in fleet.members():
        fleet.submit(member, source, Configuration(batch=1))
    found: dict[str, tuple[str, str, int]] = {}
    while len(found) < len(fleet.members()):
        for answer in fleet.wait(0.5):
            assert answer.measurement is not None, answer.lost
            node_id, gpu, process = json.loads(answer.measurement.message)
            found[answer.member.place] = (node_id, gpu, process)
    return found


def main() -> None:
    campaign._PULSE_EVERY_S, campaign._PAUSES_S = 0.5, (0.0, 0.0, 0.0)
    with campaign.ray_fleet(sys.argv[1], TellingDevice, device="cuda") as fleet:
        while len(fleet.members()) < 4:
            fleet.wait(0.5)
        before = ask_all(fleet)
        bad = min(before, key=lambda place: before[place][:2])
        assert fleet.set_aside(bad)
        for node_id, _, process in before.values():
            if node_id == before[bad][0]:
                os.kill(process, signal.SIGKILL)
        while not any(answer.lost for answer in fleet.wait(0.5)):
            pass
        while len(fleet.members()) < 3:
            fleet.wait(0.5)
        after = ask_all(fleet)
    answer = {
        "bad": before[bad][:2],
        "before": [where[:2] for where in before.values()],
        "after": [where[:2] for where in after.values()],
    }
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
