"""Devices of a Ray cluster that measure side by side: one process on each, with heart-beats, replaced where it is lost.

Machines that join while it runs are used too. All devices are of one kind: a label belongs to the device that measured
it, and a campaign is for one device.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any

from dippm.cluster.campaign_actor import Description, DeviceActor, Placed, Refusal, Row
from dippm.cluster.connection import connected_cluster, import_ray
from dippm.datasets.campaign.fleet import Answer, Member, NamedMeasurer
from dippm.errors import DippmError, UsageError
from dippm.measuring.configuration import Configuration
from dippm.measuring.model_source import ModelSource

__all__ = ["RayFleet", "ray_fleet"]

_LOG = logging.getLogger(__name__)

_LOOK_S = 2.0  # how often to look for machines that have joined
_PULSE_EVERY_S, _PULSE_LIMIT_S = 5.0, 30.0
_START_LIMIT_S = 300.0  # imports from a cold disk, CUDA, and cores that others hold
_LAGGARD_LIMIT_S = 60.0  # for the others to start when the first one has
# Before a lost process is replaced; after so many losses without a row in between its device is given up.
_PAUSES_S = (0.0, 5.0, 15.0)
_POLL_S = 0.5


@dataclass(kw_only=True, slots=True, eq=False)
class _Slot:
    """One device and the process on it, if there is one."""

    place: str
    node_id: str
    cpus: float
    gpus: int
    actor: Any = None
    member: Member | None = None  # None while it starts
    ref: Any = None  # what is to come: its place, its description, or a row
    gpu: str = ""  # the one that its latest process was given
    pulse: Any = None
    pulse_s: float = 0.0
    placed_s: float | None = None  # when it answered first: until then others may hold the device
    losses: int = 0  # on end
    start_at_s: float = 0.0
    is_aside: bool = False
    reason: str = ""
    device_name: str = ""


@contextmanager
def ray_fleet(
    address: str, make: Callable[[], NamedMeasurer], *, device: str, kind: str | None = None
) -> Iterator[RayFleet]:
    """Be connected to a cluster, with a process that measures on each of its devices.

    Args:
        address: The cluster, as :func:`dippm.cluster.connection.connected_cluster` reads it.
        make: Makes what measures, on the machine where it is called.
        device: ``"cuda"`` for one process to a GPU, or ``"cpu"`` for one to a machine, which has all its cores.
        kind: Name of the devices to measure on, or a part of it, where the cluster has several kinds.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: ``cluster.unreachable``, ``cluster.device`` for another device, ``cluster.mixed_devices`` where
            they are of several kinds.
        DippmError: ``cluster.no_workers`` where no device can be measured on.
    """
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"On a cluster all devices of a sort measure: it must be cuda or cpu. Got '{device}' instead.",
            code="cluster.device",
        )
    with connected_cluster(address):
        fleet = RayFleet(import_ray(), make, device=device)
        try:
            fleet.gather(kind)
            yield fleet
        finally:
            fleet.close()


class RayFleet:
    """A fleet of actors, see :class:`dippm.datasets.campaign.fleet.Fleet`; :func:`ray_fleet` opens one.

    Args:
        ray: Ray, connected.
        make: Makes what measures.
        device: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, ray: ModuleType, make: Callable[[], NamedMeasurer], *, device: str) -> None:
        self._ray = ray
        self._make = make
        self._is_cpu = device == "cpu"
        self._slots: dict[str, _Slot] = {}
        self._alive: set[str] = set()  # ids of the machines
        self._bad_gpus: set[tuple[str, str]] = set()  # id of the machine, and the GPU as Ray names it there
        self._holders: list[Any] = []  # processes that keep such a GPU from others
        self._started = 0
        self._looked_s = float("-inf")
        self._seen_s = time.monotonic()  # when a member was last there
        self._device_name = ""
        self._busy_s = 0.0

    @property
    def device_name(self) -> str:
        """The name that all devices give themselves."""
        return self._device_name

    @property
    def busy_s(self) -> float:
        """Seconds that all devices together ran models."""
        return self._busy_s

    def members(self) -> Sequence[Member]:
        """Processes that are ready."""
        return [slot.member for slot in self._slots.values() if slot.member is not None]

    def gather(self, kind: str | None) -> None:
        """Wait for every device that the cluster has now, and settle on one kind.

        Raises:
            UsageError: ``cluster.mixed_devices``.
            DippmError: ``cluster.no_workers``.
        """
        self._look()
        first_s: float | None = None
        while any(slot.member is None and self._is_usable(slot) for slot in self._slots.values()):
            # A device that others hold does not keep the rest waiting for ever.
            if first_s is not None and time.monotonic() - first_s > _LAGGARD_LIMIT_S:
                break
            self.wait(_POLL_S)
            if first_s is None and self.members():
                first_s = time.monotonic()
        if not self.members():
            raise self._no_workers()
        found = sorted({slot.device_name for slot in self._slots.values() if slot.member is not None})
        wanted = [name for name in found if kind is None or kind.casefold() in name.casefold()]
        if len(wanted) != 1:
            raise UsageError(
                f"A campaign is for one kind of device. The cluster has {', '.join(found)}"
                + ("." if kind is None else f", of which '{kind}' names {len(wanted)}."),
                code="cluster.mixed_devices",
                cure="Name one kind with --kind; labels of another belong to a campaign of its own.",
            )
        self._device_name = wanted[0]
        for slot in self._slots.values():
            if slot.member is not None and slot.device_name != self._device_name:
                self._put_aside(slot, f"it is a {slot.device_name}")

    def submit(self, member: Member, source: ModelSource, configuration: Configuration) -> None:
        """Let a member measure a row."""
        slot = self._slots[member.place]
        slot.ref = slot.actor.measure.remote(source, configuration)

    def wait(self, timeout_s: float) -> list[Answer]:
        """Wait for answers; start what is to be started, and look after those that are silent.

        Raises:
            DippmError: ``cluster.no_workers``.
        """
        self._look()
        self._start_due()
        if not any(self._is_usable(slot) for slot in self._slots.values()):
            raise self._no_workers()
        waited_for = {slot.ref: slot for slot in self._slots.values() if slot.ref is not None}
        pulses = self._send_pulses()
        refs = [*waited_for, *pulses]
        if not refs:
            time.sleep(timeout_s)
            return []
        self._ray.wait(refs, num_returns=1, timeout=timeout_s)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        answers: list[Answer | None] = []
        for ref in ready:
            if ref in pulses:
                answers.append(self._take_pulse(pulses[ref], ref))
            elif waited_for[ref].ref is ref:  # its pulse may have told of its end
                answers.append(self._take(waited_for[ref]))
        answers += [
            self._lose(slot, f"it did not {'answer' if slot.member else 'say what it is'} for {limit_s:g} s")
            for slot, limit_s in self._silent()
        ]
        return [answer for answer in answers if answer is not None]

    def set_aside(self, place: str) -> bool:
        """Use a device no more; False where none is left then."""
        slot = self._slots[place]
        self._shun_gpu(slot)
        self._put_aside(slot, "row after row failed on it")
        return any(self._is_usable(slot) for slot in self._slots.values())

    def close(self) -> None:
        """End all processes."""
        for slot in self._slots.values():
            self._end(slot)
        for holder in self._holders:
            self._kill(holder)
        self._holders.clear()

    def _look(self) -> None:
        """Find devices that have joined, and those that are gone."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._alive.clear()
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            node_id, has = node["NodeID"], node["Resources"]
            self._alive.add(node_id)
            cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
            for number in range(min(cpus, 1) if self._is_cpu else gpus):
                place = f"{node.get('NodeManagerHostname', '')}/{node_id[:8]}/{number}"
                if place not in self._slots:
                    # A processor is measured with all its cores; a GPU's process has its share of them, a core at most.
                    needed = cpus if self._is_cpu else min(cpus / gpus, 1)
                    self._slots[place] = _Slot(place=place, node_id=node_id, cpus=needed, gpus=0 if self._is_cpu else 1)

    def _is_usable(self, slot: _Slot) -> bool:
        return not slot.is_aside and slot.losses <= len(_PAUSES_S) and slot.node_id in self._alive

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for slot in self._slots.values():
            if slot.actor is None and self._is_usable(slot) and now_s >= slot.start_at_s:
                self._start(slot)
        if self.members():
            self._seen_s = now_s
        elif now_s - self._seen_s > _START_LIMIT_S:
            raise self._no_workers()

    def _start(self, slot: _Slot) -> None:
        actor_class: Any = self._ray.remote(DeviceActor)
        slot.actor = actor_class.options(
            num_cpus=slot.cpus,
            num_gpus=slot.gpus,
            # A second thread answers heart-beats while the first one waits for the row.
            max_concurrency=2,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=_on_node(slot.node_id),
        ).remote(self._make, threads=os.environ.get("OMP_NUM_THREADS"))
        slot.ref = slot.actor.place.remote()

    def _settle(self, slot: _Slot, placed: Placed) -> None:
        """Ask a process what its device is, unless Ray gave it a GPU that is used no more: then it stays to hold it."""
        slot.gpu, slot.placed_s = placed.gpu, time.monotonic()
        if (slot.node_id, slot.gpu) in self._bad_gpus:
            self._shun_gpu(slot)
        else:
            slot.ref = slot.actor.describe.remote()

    def _shun_gpu(self, slot: _Slot) -> None:
        """Use the GPU of a device's latest process no more: the process, where it lives, stays there and is idle.

        Ray gives a GPU that is free to any process that starts. Where the holder has died, the GPU is known again.
        """
        if not slot.gpu:
            return
        self._bad_gpus.add((slot.node_id, slot.gpu))
        if slot.actor is not None:
            self._holders.append(slot.actor)
            slot.actor = None
        self._forget(slot)

    def _silent(self) -> list[tuple[_Slot, float]]:
        """Those that have not answered for longer than they may, and how long that is, s."""
        now_s, found = time.monotonic(), []
        for slot in self._slots.values():
            if slot.member is None:
                since_s, limit_s = slot.placed_s, _START_LIMIT_S
            else:
                since_s, limit_s = None if slot.pulse is None else slot.pulse_s, _PULSE_LIMIT_S
            if since_s is not None and now_s - since_s > limit_s:
                found.append((slot, limit_s))
        return found

    def _send_pulses(self) -> dict[Any, _Slot]:
        now_s = time.monotonic()
        for slot in self._slots.values():
            if slot.member is not None and slot.pulse is None and now_s - slot.pulse_s >= _PULSE_EVERY_S:
                slot.pulse, slot.pulse_s = slot.actor.pulse.remote(), now_s
        return {slot.pulse: slot for slot in self._slots.values() if slot.pulse is not None}

    def _take_pulse(self, slot: _Slot, ref: Any) -> Answer | None:
        if slot.pulse is not ref:
            return None
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayError as exc:
            return self._lose(slot, _describe(exc))
        slot.pulse = None
        return None

    def _take(self, slot: _Slot) -> Answer | None:
        try:
            got = self._ray.get(slot.ref)
        except self._ray.exceptions.RayError as exc:
            return self._lose(slot, _describe(exc))
        slot.ref = None
        if isinstance(got, Refusal):
            return self._lose(slot, got.message)
        if isinstance(got, Placed):
            self._settle(slot, got)
        elif isinstance(got, Description):
            self._welcome(slot, got)
        elif isinstance(got, Row) and slot.member is not None:
            slot.losses = 0
            self._busy_s += got.busy_s
            return Answer(member=slot.member, measurement=got.measurement)
        return None

    def _welcome(self, slot: _Slot, description: Description) -> None:
        own = version("dippm")
        if description.version != own:
            self._put_aside(slot, f"it has dippm {description.version}, and this machine {own}")
        elif self._device_name not in ("", description.device_name):
            self._put_aside(slot, f"it is a {description.device_name}, and the campaign is for {self._device_name}")
        else:
            self._started += 1
            slot.device_name = description.device_name
            slot.member = Member(name=f"{slot.place}#{self._started}", place=slot.place)
            slot.pulse_s = time.monotonic()

    def _lose(self, slot: _Slot, reason: str) -> Answer | None:
        member = slot.member
        slot.reason = reason
        _LOG.warning("The process that measures on %s is lost: %s", slot.place, reason)
        self._end(slot)
        slot.losses += 1
        slot.start_at_s = time.monotonic() + _PAUSES_S[min(slot.losses, len(_PAUSES_S)) - 1]
        if slot.losses > len(_PAUSES_S):
            self._shun_gpu(slot)
        return None if member is None else Answer(member=member, measurement=None, lost=reason)

    def _put_aside(self, slot: _Slot, reason: str) -> None:
        _LOG.warning("%s is not measured on: %s", slot.place, reason)
        slot.reason, slot.is_aside = reason, True
        self._end(slot)

    def _end(self, slot: _Slot) -> None:
        actor, slot.actor = slot.actor, None
        self._forget(slot)
        if actor is not None:
            self._kill(actor)

    def _kill(self, actor: Any) -> None:
        # It is gone already, or the connection is.
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.kill(actor)

    @staticmethod
    def _forget(slot: _Slot) -> None:
        """Wait for nothing more from its process."""
        slot.member = slot.ref = slot.pulse = slot.placed_s = None

    def _no_workers(self) -> DippmError:
        reasons = [f"{slot.place}: {slot.reason}" for slot in self._slots.values() if slot.reason]
        what = "processor" if self._is_cpu else "GPU"
        if not reasons:
            return DippmError(
                f"The cluster has no {what} that is free to measure on.",
                code="cluster.no_workers",
                cure="Join machines that have one and hold it for nothing else"
                + ("." if self._is_cpu else ", or measure on processors with --device cpu."),
            )
        return DippmError(
            f"The cluster has no {what} left to measure on: {'; '.join(reasons[:3])}.",
            code="cluster.no_workers",
            cure="See that dippm is installed on every machine, and that nothing else holds the devices; "
            "then go on with --resume.",
        )


def _on_node(node_id: str) -> Any:
    """Ray's way to say that an actor is for one machine alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _describe(error: BaseException) -> str:
    """One line of an error: of one that was raised in the other process its last, which names it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if getattr(error, "cause", None) is not None else 0].strip()
