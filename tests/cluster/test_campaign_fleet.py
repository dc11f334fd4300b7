"""The fleet's own decisions, on a cluster in memory: who joins, who is lost, replaced, left out or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.cluster import campaign
from dippm.cluster.campaign import RayFleet, ray_fleet
from dippm.cluster.campaign_actor import Description, Placed, Refusal, Row
from dippm.errors import DippmError, UsageError
from dippm.measuring.measurement import Measurement, Outcome

ROW = Row(measurement=Measurement(outcome=Outcome.OK, device="", measured_at=""), busy_s=0.5)


class FakeRayError(Exception):
    pass


@dataclass(eq=False)
class Ref:
    """What a call will give; a call of a process that hangs gives nothing."""

    handle: Handle
    method: str


@dataclass(eq=False)
class Handle:
    """A process on a node."""

    ray: FakeRay
    options: dict[str, Any]
    gpu: int = -1  # -1 while it waits for one
    is_dead: bool = False
    is_hanging: bool = False

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: Ref(self, method))

    @property
    def node_id(self) -> str:
        node_id: str = self.options["scheduling_strategy"]
        return node_id


@dataclass
class FakeRay:
    """As much of Ray as a fleet uses."""

    names: dict[str, str] = field(default_factory=dict)  # of the device on each node
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 8.0, "GPU": 1.0})
    started: list[Handle] = field(default_factory=list)
    describe: Callable[[Handle], object] | None = None
    hanging_methods: tuple[str, ...] = ()
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=FakeRayError))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": node, "NodeManagerHostname": f"host-{node}", "Resources": self.resources}
            for node in self.names
        ]

    def remote(self, _: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *_, **__: self._start(options)))

    def wait(self, refs: list[Ref], *, num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        ready = [ref for ref in refs if not ref.handle.is_hanging and ref.method not in self.hanging_methods]
        if not ready:
            time.sleep(min(timeout, 0.01))
        return ready[:num_returns], []

    def get(self, ref: Ref) -> object:
        if ref.handle.is_dead or ref.handle.node_id not in self.names:
            raise FakeRayError("The actor died.\nMuch more.")
        if ref.method == "place":
            return Placed(gpu="" if ref.handle.gpu < 0 else str(ref.handle.gpu))
        if ref.method == "describe":
            if self.describe is not None:
                return self.describe(ref.handle)
            return Description(device_name=self.names[ref.handle.node_id], version=campaign.version("dippm"))
        return ROW if ref.method == "measure" else None

    def kill(self, handle: Handle) -> None:
        handle.is_dead = True

    def _start(self, options: dict[str, Any]) -> Handle:
        """Any GPU that is free will do, as far as Ray is concerned."""
        handle = Handle(self, options)
        taken = {each.gpu for each in self.started if not each.is_dead and each.node_id == handle.node_id}
        handle.gpu = min(set(range(int(self.resources.get("GPU", 0)))) - taken, default=-1)
        self.started.append(handle)
        return handle


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_on_node", lambda node_id: node_id)
    monkeypatch.setattr(campaign, "_LOOK_S", 0.0)
    monkeypatch.setattr(campaign, "_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(campaign, "_PULSE_EVERY_S", 0.0)


def gather(ray: FakeRay, *, device: str = "cuda", kind: str | None = None) -> RayFleet:
    fleet = RayFleet(ray, lambda: pytest.fail("made here"), device=device)  # type: ignore[arg-type]
    fleet.gather(kind)
    return fleet


def wait(fleet: RayFleet, times: int = 5) -> list[Any]:
    return [answer for _ in range(times) for answer in fleet.wait(0.01)]


def test_there_is_a_process_on_every_gpu() -> None:
    ray = FakeRay({"a": "H100", "b": "H100"}, {"CPU": 16.0, "GPU": 4.0})
    fleet = gather(ray)
    assert len({member.place for member in fleet.members()}) == 8
    assert [(handle.options["num_cpus"], handle.options["num_gpus"]) for handle in ray.started] == [(1, 1)] * 8
    fleet.close()
    assert all(handle.is_dead for handle in ray.started)


def test_more_gpus_than_cores_measure_all_the_same() -> None:
    ray = FakeRay({"a": "H100"}, {"CPU": 1.0, "GPU": 2.0})
    assert len(gather(ray).members()) == 2
    assert [handle.options["num_cpus"] for handle in ray.started] == [0.5, 0.5]


def test_a_processor_is_measured_by_one_process_that_has_all_its_cores() -> None:
    ray = FakeRay({"a": "Xeon", "b": "Xeon"}, {"CPU": 16.0})
    assert len(gather(ray, device="cpu").members()) == 2
    assert [(handle.options["num_cpus"], handle.options["num_gpus"]) for handle in ray.started] == [(16, 0)] * 2


def test_a_machine_without_cores_of_its_own_measures_nothing() -> None:
    with pytest.raises(DippmError) as caught:
        gather(FakeRay({"a": "Xeon"}, {}), device="cpu")
    assert caught.value.code == "cluster.no_workers"


def test_rows_come_back_with_the_time_that_the_device_was_busy() -> None:
    fleet = gather(FakeRay({"a": "H100", "b": "H100"}))
    for member in fleet.members():
        fleet.submit(member, None, None)  # type: ignore[arg-type]
    answers = wait(fleet)
    assert {answer.member for answer in answers} == set(fleet.members())
    assert [answer.measurement for answer in answers] == [ROW.measurement] * 2
    assert fleet.busy_s == 1.0


def test_devices_of_several_kinds_are_refused_unless_one_is_named() -> None:
    names = {"a": "A100-SXM4-40GB", "b": "H100 80GB HBM3", "c": "H100 80GB HBM3"}
    with pytest.raises(UsageError, match="A100-SXM4-40GB, H100 80GB HBM3") as caught:
        gather(FakeRay(names))
    assert caught.value.code == "cluster.mixed_devices"
    with pytest.raises(UsageError, match="'100' names 2"):
        gather(FakeRay(names), kind="100")
    ray = FakeRay(names)
    fleet = gather(ray, kind="h100")
    assert fleet.device_name == "H100 80GB HBM3"
    assert {member.place[:6] for member in fleet.members()} == {"host-b", "host-c"}
    assert [handle.is_dead for handle in ray.started] == [True, False, False]


def test_machines_that_join_are_used_where_they_are_of_the_kind() -> None:
    ray = FakeRay({"a": "H100"})
    fleet = gather(ray)
    ray.names |= {"b": "A100", "c": "H100"}
    wait(fleet)
    assert [member.place[:6] for member in fleet.members()] == ["host-a", "host-c"]


def test_a_lost_process_is_replaced() -> None:
    ray = FakeRay({"a": "H100"})
    fleet = gather(ray)
    (first,) = fleet.members()
    fleet.submit(first, None, None)  # type: ignore[arg-type]
    ray.started[0].is_dead = True
    (answer,) = wait(fleet)
    assert (answer.member, answer.measurement, answer.lost) == (first, None, "The actor died.")
    (second,) = fleet.members()
    assert second.place == first.place
    assert second.name != first.name


def test_an_idle_process_that_is_lost_is_told_of_too() -> None:
    ray = FakeRay({"a": "H100", "b": "H100"})
    fleet = gather(ray)
    lost = fleet.members()[0]
    ray.started[0].is_dead = True
    (answer,) = wait(fleet)
    assert (answer.member, answer.measurement) == (lost, None)


def test_a_silent_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_PULSE_LIMIT_S", 0.05)
    ray = FakeRay({"a": "H100", "b": "H100"})
    fleet = gather(ray)
    silent = fleet.members()[0]
    fleet.submit(silent, None, None)  # type: ignore[arg-type]
    ray.started[0].is_hanging = True
    answers: list[Any] = []
    until = time.monotonic() + 5
    while not answers and time.monotonic() < until:
        answers = wait(fleet)
    assert [(answer.member, answer.measurement) for answer in answers] == [(silent, None)]
    assert "did not answer" in answers[0].lost
    assert ray.started[0].is_dead


def test_a_device_on_which_no_process_lives_is_given_up() -> None:
    ray = FakeRay({"a": "H100", "b": "H100"})
    ray.describe = lambda handle: (
        Refusal(message="The driver is gone.")
        if handle.node_id == "a"
        else Description(device_name="H100", version=campaign.version("dippm"))
    )
    fleet = gather(ray)
    assert [member.place[:6] for member in fleet.members()] == ["host-b"]
    assert [handle.is_dead for handle in ray.started if handle.node_id == "a"] == [True, True, True]
    # With the last one gone, its error says what became of each.
    del ray.names["b"]
    with pytest.raises(DippmError, match="The driver is gone") as caught:
        wait(fleet)
    assert caught.value.code == "cluster.no_workers"


def test_another_version_of_dippm_is_left_out() -> None:
    ray = FakeRay({"a": "H100"})
    ray.describe = lambda handle: Description(device_name="H100", version="0.0.1")
    with pytest.raises(DippmError, match=r"it has dippm 0\.0\.1"):
        gather(ray)


def test_a_device_that_was_set_aside_is_not_used_again() -> None:
    ray = FakeRay({"a": "H100", "b": "H100"})
    fleet = gather(ray)
    first, second = fleet.members()
    assert fleet.set_aside(first.place)
    wait(fleet)
    assert fleet.members() == [second]
    assert not fleet.set_aside(second.place)


def test_a_device_that_was_set_aside_does_not_come_back_under_another_name() -> None:
    ray = FakeRay({"a": "H100"}, {"CPU": 8.0, "GPU": 2.0})
    fleet = gather(ray)
    bad, good = fleet.members()
    assert fleet.set_aside(bad.place)
    ray.started[1].is_dead = True
    (answer,) = wait(fleet)
    assert answer.member == good
    (replaced,) = fleet.members()
    assert replaced.place == good.place
    assert [(handle.gpu, handle.is_dead) for handle in ray.started] == [(0, False), (1, True), (1, False)]
    fleet.close()
    assert all(handle.is_dead for handle in ray.started)


def test_a_device_whose_holder_dies_is_known_again() -> None:
    ray = FakeRay({"a": "H100"}, {"CPU": 8.0, "GPU": 2.0})
    fleet = gather(ray)
    bad, good = fleet.members()
    assert fleet.set_aside(bad.place)
    for _ in range(2):
        # Ray gives the bad GPU, which nobody holds, to the process that replaces the good one.
        for handle in ray.started:
            handle.is_dead = True
        (answer,) = wait(fleet)
        assert answer.member == good
        (good,) = fleet.members()
        assert [(handle.gpu, handle.is_dead) for handle in ray.started[-2:]] == [(0, False), (1, False)]
    fleet.close()
    assert all(handle.is_dead for handle in ray.started)


def test_a_device_that_was_set_aside_between_two_processes_does_not_come_back() -> None:
    ray = FakeRay({"a": "H100"}, {"CPU": 8.0, "GPU": 2.0})
    fleet = gather(ray)
    bad, good = fleet.members()
    ray.started[0].is_dead = True
    while len(fleet.members()) == 2:
        fleet.wait(0.01)
    assert fleet.set_aside(bad.place)
    ray.started[1].is_dead = True
    wait(fleet)
    assert [member.place for member in fleet.members()] == [good.place]
    assert [handle.gpu for handle in ray.started if not handle.is_dead] == [0, 1]


def test_a_device_that_was_given_up_does_not_come_back_under_another_name() -> None:
    ray = FakeRay({"a": "H100"}, {"CPU": 8.0, "GPU": 2.0})
    ray.describe = lambda handle: (
        Refusal(message="The driver is gone.")
        if handle.gpu == 0
        else Description(device_name="H100", version=campaign.version("dippm"))
    )
    fleet = gather(ray)
    (good,) = fleet.members()
    ray.started[1].is_dead = True
    wait(fleet)
    assert [member.place for member in fleet.members()] == [good.place]
    assert [handle.gpu for handle in ray.started if not handle.is_dead] == [0, 1]


def test_a_processor_that_was_set_aside_is_left_alone() -> None:
    ray = FakeRay({"a": "Xeon", "b": "Xeon"}, {"CPU": 8.0})
    fleet = gather(ray, device="cpu")
    fleet.set_aside(fleet.members()[0].place)
    assert [handle.is_dead for handle in ray.started] == [True, False]


def test_a_device_that_does_not_say_what_it_is_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": "H100"})
    fleet = gather(ray)
    monkeypatch.setattr(campaign, "_START_LIMIT_S", 0.05)
    ray.names["b"] = "H100"
    ray.hanging_methods = ("describe",)
    until = time.monotonic() + 5
    while len([handle for handle in ray.started if handle.node_id == "b" and handle.is_dead]) < 3:
        assert time.monotonic() < until
        wait(fleet)
    assert [member.place[:6] for member in fleet.members()] == ["host-a"]


def test_a_device_that_others_hold_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": "H100"})
    fleet = gather(ray)
    monkeypatch.setattr(campaign, "_START_LIMIT_S", 0.05)
    ray.names["b"] = "H100"
    ray.hanging_methods = ("place",)
    wait(fleet, times=20)
    assert len(fleet.members()) == 1
    ray.hanging_methods = ()
    wait(fleet)
    assert not ray.started[1].is_dead
    assert len(fleet.members()) == 2


def test_one_device_of_a_machine_cannot_be_named() -> None:
    with pytest.raises(UsageError) as caught, ray_fleet("auto", lambda: pytest.fail("made"), device="cuda:1"):
        pytest.fail("opened")
    assert caught.value.code == "cluster.device"
