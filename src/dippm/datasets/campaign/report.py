"""What a campaign did: counts, speed, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from dippm.datasets.campaign.stopping import StopReason
from dippm.datasets.statistics import NoiseFloor
from dippm.datasets.store.label import Label
from dippm.errors import DippmError
from dippm.measuring.measurement import Outcome

__all__ = ["NO_RESULT", "CampaignReport", "CampaignStoppedError", "FleetTally", "Tally"]

NO_RESULT = (Outcome.FAILED, Outcome.TIMED_OUT)
"""Outcomes that may tell more of the machine's state than of the model: such rows may be measured again."""

_LONGEST_REASON = 200
_REASONS_SHOWN = 15


@dataclass(kw_only=True, slots=True)
class Tally:
    """What was measured so far, counted row by row.

    Args:
        rows: Rows that this run measured.
        by_outcome: Rows by how they ended.
        by_family: Rows by family of the model.
        failures: Rows by outcome and reason, those that ended well left out.
        repeats: Rows that are second measurements.
        measuring_s: Time that measuring them took, waiting for them included.
    """

    rows: int = 0
    by_outcome: Counter[str] = field(default_factory=Counter)
    by_family: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    repeats: int = 0
    measuring_s: float = 0.0

    def add(self, label: Label) -> None:
        """Count one row."""
        measurement = label.measurement
        self.rows += 1
        self.repeats += label.repeat > 0
        self.by_outcome[measurement.outcome.value] += 1
        self.by_family[label.recipe.family] += 1
        if measurement.outcome is not Outcome.OK:
            self.failures[measurement.outcome.value, measurement.message[:_LONGEST_REASON]] += 1


@dataclass(kw_only=True, slots=True)
class FleetTally:
    """What became of the devices of a campaign on several, counted while they measure.

    Args:
        devices: Devices that measured at the same time, at most.
        device_s: Time that devices were there to measure on, over all of them, s.
        lost: Measuring processes that were lost with their machine, or ended.
        set_aside: Devices that were used no more because row after row failed on them.
        moved: Rows that were tried on another device after one had failed on them or was lost.
        reissued: Rows that were given to a second device because the first took too long.
    """

    devices: int = 0
    device_s: float = 0.0
    lost: int = 0
    set_aside: int = 0
    moved: int = 0
    reissued: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignReport:
    """One run of a campaign.

    Args:
        device: The device's name.
        stopped: Why it ended.
        planned: Rows of the whole plan.
        found: Rows of the plan that the store held before.
        measured: Rows that this run added.
        repeats: Those of them that are second measurements.
        not_tried: First measurements left out because a smaller batch of the same series ran out of memory.
        remaining: Rows of the plan that are still to be measured.
        wall_s: Time of the whole run, s.
        measuring_s: The part of it in which rows were to be measured, s; the rest went to graphs.
        busy_s: The part of that in which models ran, by the host's clock, s: warm-up, measured calls and the windows of
            energy, waiting between them included; the rest went to building models and to starting processes.
        budget_s: Time that the run was given, s; None for no limit.
        by_outcome: Rows of this run by how they ended.
        by_family: Rows of this run by family.
        failures: (outcome, reason) of rows that did not end well, and their number, the most frequent first.
        noise: How far two measurements of one configuration differ, over all labels of the device in the store.
        graphs: Models whose graph this run has read.
        graphs_failed: Model keys whose graph cannot be read, with the reason.
        graphs_pending: Models whose graph is still to be read.
        fleet: What became of the devices of a campaign on several; None for one device.
    """

    device: str
    stopped: StopReason
    planned: int
    found: int
    measured: int
    repeats: int
    not_tried: int
    remaining: int
    wall_s: float
    measuring_s: float
    busy_s: float
    budget_s: float | None
    by_outcome: Mapping[str, int]
    by_family: Mapping[str, int]
    failures: tuple[tuple[str, str, int], ...]
    noise: tuple[NoiseFloor, ...]
    graphs: int
    graphs_failed: Mapping[str, str]
    graphs_pending: int
    fleet: FleetTally | None = None

    @property
    def rows_per_minute(self) -> float:
        """Rows with a result per minute of measuring; what failed or timed out is none."""
        results = self.measured - sum(self.by_outcome.get(outcome, 0) for outcome in NO_RESULT)
        return 60.0 * results / self.measuring_s if self.measuring_s > 0 else 0.0

    @property
    def busy_share(self) -> float:
        """Share of the time of measuring in which models ran, over all devices, 0 to 1: as the host sees it."""
        device_s = self.measuring_s if self.fleet is None else self.fleet.device_s
        return min(self.busy_s / device_s, 1.0) if device_s > 0 else 0.0

    @property
    def budget_left_s(self) -> float | None:
        """What is left of the budget, s; None where there was none."""
        return None if self.budget_s is None else max(self.budget_s - self.wall_s, 0.0)

    def to_dict(self) -> dict[str, object]:
        """The report for JSON."""
        left = self.budget_left_s
        return {
            "device": self.device,
            "stopped": self.stopped.value,
            "planned": self.planned,
            "found": self.found,
            "measured": self.measured,
            "repeats": self.repeats,
            "not_tried": self.not_tried,
            "remaining": self.remaining,
            "rows_per_minute": round(self.rows_per_minute, 2),
            "busy_share": round(self.busy_share, 4),
            "wall_s": round(self.wall_s, 2),
            "measuring_s": round(self.measuring_s, 2),
            "busy_s": round(self.busy_s, 2),
            "budget_s": self.budget_s,
            "budget_left_s": None if left is None else round(left, 2),
            "by_outcome": dict(self.by_outcome),
            "by_family": dict(self.by_family),
            "failures": [
                {"outcome": outcome, "reason": reason, "rows": rows} for outcome, reason, rows in self.failures
            ],
            "noise": [asdict(floor) for floor in self.noise],
            "graphs": self.graphs,
            "graphs_failed": dict(self.graphs_failed),
            "graphs_pending": self.graphs_pending,
            "fleet": None if self.fleet is None else asdict(self.fleet),
        }

    def __str__(self) -> str:
        left = self.budget_left_s
        lines = [
            f"{self.device}: {self.stopped.value} after {self.wall_s:.0f} s"
            + ("" if left is None else f", {left:.0f} s of the budget left"),
            f"  rows       {self.measured} measured ({self.repeats} again), {self.found} there before, "
            f"{self.not_tried} not tried, {self.remaining} of {self.planned} to go",
            f"  speed      {self.rows_per_minute:.1f} results a minute, measuring {100 * self.busy_share:.0f} % of "
            f"{self.measuring_s:.0f} s",
            f"  noise      {_describe_noise(self.noise)}",
            f"  graphs     {self.graphs} read, {len(self.graphs_failed)} failed, {self.graphs_pending} to go",
            f"  outcomes   {_join(self.by_outcome)}",
            f"  families   {_join(self.by_family)}",
        ]
        if self.fleet is not None:
            fleet = self.fleet
            lines.append(
                f"  fleet      {fleet.devices} devices at most, {fleet.lost} processes lost, {fleet.set_aside} devices "
                f"set aside, {fleet.moved} rows moved, {fleet.reissued} issued twice"
            )
        for outcome, reason, rows in self.failures[:_REASONS_SHOWN]:
            lines.append(f"  {rows:>6} x  {outcome}: {reason}" if reason else f"  {rows:>6} x  {outcome}")
        if len(self.failures) > _REASONS_SHOWN:
            lines.append(f"          and {len(self.failures) - _REASONS_SHOWN} more reasons")
        return "\n".join(lines)


class CampaignStoppedError(DippmError):
    """A campaign that an error has ended. Its code and exit status are those of the error.

    Args:
        cause: The error.
        report: What was measured until then; all of it is in the store.
    """

    def __init__(self, cause: DippmError, *, report: CampaignReport) -> None:
        super().__init__(str(cause), code=cause.code)
        self.exit_status = cause.exit_status
        self.report = report


def _describe_noise(floors: tuple[NoiseFloor, ...]) -> str:
    parts = [
        f"{floor.metric} {floor.mean_difference_percent:.1f} % (at most {floor.largest_difference_percent:.1f} %, "
        f"{floor.pairs} pairs)"
        for floor in floors
    ]
    return ", ".join(parts) or "unknown: nothing was measured twice yet"


def _join(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
