"""Importer of published board power of training runs.

Source: ml-energy/zeus (Apache-2.0), traces of the NSDI'23 paper: A40, V100, P100, Quadro RTX 6000; mean board power by
NVML and time per batch derived from the time per epoch. Rows at the board's own power limit only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dippm.datasets.tables import read_records

__all__ = ["BusyRun", "read_busy_runs"]

_FILE = "zeus_training_power.csv"
# Names as published to names of the catalogue; the V100 is not told apart further, its 250 W limit is the PCIe board's.
_DEVICES = {"A40 48GB": "A40", "V100": "V100-PCIE-32GB", "P100": "P100", "Quadro RTX 6000": "Quadro RTX 6000"}
# Text classification on short sentences of unknown length: no time per batch is published for it.
_UNTIMED_INPUTS = frozenset({"sentiment140"})
_IDLE_MODEL, _IDLE_BATCH = "ShuffleNetV2", 8


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyRun:
    """One training run.

    Args:
        device: Canonical device name.
        model: Name as published.
        batch: Samples per step.
        step_time_ms: Time of one step, ms.
        power_w: Mean board power, W.
        power_limit_w: Power limit of the board, W.
        is_idle: Whether the device mostly waited: a tiny model on tiny images at the smallest batch.
    """

    device: str
    model: str
    batch: int
    step_time_ms: float
    power_w: float
    power_limit_w: float
    is_idle: bool


def read_busy_runs(folder: Path) -> list[BusyRun]:
    """Read the runs at full power limit whose time per batch is known.

    Raises:
        UsageError: ``data.missing`` where the table is not there.
    """
    records = [
        record
        for record in read_records(folder / _FILE)
        if float(record["is_max_power_limit"] or 0) == 1.0
        and record["latency_ms_per_batch"]
        and record["input"] not in _UNTIMED_INPUTS
    ]
    return [
        BusyRun(
            device=_DEVICES[record["device"]],
            model=record["model"],
            batch=int(float(record["batch"])),
            step_time_ms=float(record["latency_ms_per_batch"]),
            power_w=float(record["avg_power_w"]),
            power_limit_w=float(record["power_limit_w"]),
            is_idle=record["model"] == _IDLE_MODEL and float(record["batch"]) == _IDLE_BATCH,
        )
        for record in records
        if record["device"] in _DEVICES
    ]
