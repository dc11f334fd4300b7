"""Several devices of one kind that measure side by side, as a campaign sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement
from dippm.measuring.model_source import ModelSource
from dippm.measuring.protocol import Plan

if TYPE_CHECKING:
    from dippm.measuring.worker import Worker

__all__ = ["Answer", "Fleet", "Member", "NamedMeasurer", "OpenFleet", "WorkerFactory"]


class NamedMeasurer(Protocol):
    """What measures on one device, and knows its name: :class:`dippm.measuring.worker.Worker`."""

    @property
    def device_name(self) -> str:
        """The device as it names itself."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds that the device ran measured or warm-up work."""
        ...

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        """One measurement per configuration, in order; a model stays built until another one comes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFactory:
    """Makes the guarded process that measures, on whatever machine it is called.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        row_limit_s: Wall time after which a row is given up, s.
        plan: How often each model is run.
    """

    device: str
    row_limit_s: float
    plan: Plan

    def __call__(self) -> Worker:
        """Make one."""
        from dippm.measuring.worker import Worker

        return Worker(self.device, configuration_limit_s=self.row_limit_s, plan=self.plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One process that measures.

    Args:
        name: Its own, never used again.
        place: The device under it; a process that replaces it has the same.
    """

    name: str
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came of a member.

    Args:
        member: Who it was.
        measurement: The row that it was asked for; None where the process is lost, with its row where it had one.
        lost: Why it is lost, else ``""``.
    """

    member: Member
    measurement: Measurement | None
    lost: str = ""


class Fleet(Protocol):
    """Devices of one kind; each measures one row at a time."""

    @property
    def device_name(self) -> str:
        """The name that all of them give themselves."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds that all devices together ran measured or warm-up work."""
        ...

    def members(self) -> Sequence[Member]:
        """Those that are ready; others may join and leave at any moment of :meth:`wait`."""
        ...

    def submit(self, member: Member, source: ModelSource, configuration: Configuration) -> None:
        """Let a member measure a row; it must have none under way."""
        ...

    def wait(self, timeout_s: float) -> list[Answer]:
        """Wait for answers, no longer than this.

        Raises:
            DippmError: ``cluster.no_workers``: no member is left, and none can be expected.
        """
        ...

    def set_aside(self, place: str) -> bool:
        """Use a device no more; False where none is left then."""
        ...


OpenFleet = Callable[[Callable[[], NamedMeasurer]], AbstractContextManager[Fleet]]
"""Opens a fleet whose members measure with what the given factory makes."""
