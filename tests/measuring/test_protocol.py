"""How often a model is run, with a clock that only calls move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dippm.measuring import protocol
from dippm.measuring.measurement import DeviceState, SoftwareStack
from dippm.measuring.meter import CallTime, MemoryReading
from dippm.measuring.protocol import FEWEST_CALLS, Plan, TooSlowError, run_protocol


@dataclass
class FakeMeter:
    """A device that takes the same time and power for each call; its energy counter moves in ticks."""

    call_s: float
    first_call_s: float | None = None
    power_w: float = 100.0
    tick_s: float = 0.1
    source: str | None = "fake"
    reading_s: float = 0.0
    readings: int = 0
    now_s: float = 0.037
    log: list[str] = field(default_factory=list)
    device: str = "cpu"
    device_name: str = "fake"
    idle_power_w: float | None = None

    @property
    def energy(self) -> FakeMeter | None:
        return None if self.source is None else self

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    def read_j(self) -> float | None:
        self.now_s += self.reading_s
        self.readings += 1
        return self.power_w * (self.now_s // self.tick_s) * self.tick_s

    def synchronise(self) -> None:
        pass

    def time_call(self, call: Callable[[], object]) -> tuple[object, CallTime]:
        took = self.call_s if self.first_call_s is None or "call" in self.log else self.first_call_s
        self.now_s += took
        self.log.append("call")
        return call(), CallTime(wall_s=took, device_s=took / 2)

    def is_usable(self) -> bool:
        return True

    def release_memory(self) -> None:
        pass

    def base_memory_mb(self) -> float | None:
        return None

    def reset_peaks(self) -> None:
        self.log.append("reset")

    def read_memory(self) -> MemoryReading:
        self.log.append("memory")
        return MemoryReading(memory_mb=1.0)

    def state(self) -> DeviceState:
        return DeviceState()

    def software(self, framework: str) -> SoftwareStack:
        return SoftwareStack(framework=framework)


@pytest.fixture(name="make_meter")
def _make_meter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeMeter]:
    def make(**values: object) -> FakeMeter:
        meter = FakeMeter(**values)  # type: ignore[arg-type]
        monkeypatch.setattr(protocol.time, "perf_counter", lambda: meter.now_s)
        return meter

    return make


def test_five_and_thirty(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.01, source=None)
    run = run_protocol(lambda: "output", meter, Plan())
    assert (run.warmup_runs, len(run.times), run.output) == (5, 30, "output")
    assert meter.log == ["call"] * 5 + ["reset"] + ["call"] * 30 + ["memory"]
    assert run.energy_j is None


@pytest.mark.parametrize(
    ("call_s", "warmups", "timed"),
    [(0.5, 5, 30), (1.0, 5, 26), (2.0, 4, 12), (8.0, 2, 3), (100.0, 2, 3)],
)
def test_slow_models_run_less_often(
    make_meter: Callable[..., FakeMeter], call_s: float, warmups: int, timed: int
) -> None:
    run = run_protocol(lambda: None, make_meter(call_s=call_s, source=None), Plan(budget_s=30.0))
    assert (run.warmup_runs, len(run.times)) == (warmups, timed)


def test_a_slow_first_call_is_forgiven(make_meter: Callable[..., FakeMeter]) -> None:
    run = run_protocol(lambda: None, make_meter(call_s=0.01, first_call_s=90.0, source=None), Plan(budget_s=10.0))
    assert (run.warmup_runs, len(run.times)) == (5, 30)


@pytest.mark.parametrize(("limit_s", "calls"), [(99.0, 2), (101.0, FEWEST_CALLS)])
def test_calls_that_do_not_end_in_time_are_given_up_after_the_second(
    make_meter: Callable[..., FakeMeter], limit_s: float, calls: int
) -> None:
    meter = make_meter(call_s=20.0, source=None)
    deadline_s = meter.now_s + limit_s
    if calls < FEWEST_CALLS:
        with pytest.raises(TooSlowError, match="One call took 20 s, and 3 more would not end in the 59 s left"):
            run_protocol(lambda: None, meter, Plan(), deadline_s=deadline_s)
    else:
        run_protocol(lambda: None, meter, Plan(), deadline_s=deadline_s)
    assert meter.log.count("call") == calls


def test_a_slow_first_call_alone_gives_up_nothing(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.01, first_call_s=90.0, source=None)
    run = run_protocol(lambda: None, meter, Plan(), deadline_s=meter.now_s + 100.0)
    assert len(run.times) == 30


@pytest.mark.parametrize("call_s", [0.0007, 0.004, 0.03, 0.09])
def test_energy_of_short_calls_is_exact_to_a_call_and_a_hundredth_of_a_second(
    make_meter: Callable[..., FakeMeter], call_s: float
) -> None:
    meter = make_meter(call_s=call_s)
    run = run_protocol(lambda: None, meter, Plan())
    assert run.energy_j is not None
    assert run.energy_window_s is not None
    assert run.energy_window_s >= 0.6
    # Without waiting for ticks the error would be up to a tick in 0.6 s.
    uncertain_s = 0.01 + call_s
    assert run.energy_j == pytest.approx(100.0 * call_s, rel=1.1 * uncertain_s / run.energy_window_s)
    assert meter.log.count("start") == meter.log.count("stop") == 1
    assert len(run.times) == 30


def test_a_counter_that_is_slow_to_read_is_read_rarely(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.0007, reading_s=0.002)
    run = run_protocol(lambda: None, meter, Plan())
    assert run.energy_window_s is not None
    assert meter.readings < 30
    # The device is idle while it is read: at most two ticks of 0.1 s are sought, in steps of 0.01 s and more.
    assert run.energy_j == pytest.approx(100.0 * 0.0007, rel=0.06)


@pytest.mark.parametrize(
    ("device", "call_s", "calls_before"),
    [("cuda:0", 0.001, 251), ("cuda:0", 0.1, 5), ("cpu", 0.001, 5)],
)
def test_a_gpu_is_under_load_before_its_energy_counts(
    make_meter: Callable[..., FakeMeter], device: str, call_s: float, calls_before: int
) -> None:
    meter = make_meter(call_s=call_s, device=device)
    run = run_protocol(lambda: None, meter, Plan())
    assert meter.log[: meter.log.index("start")].count("call") == pytest.approx(calls_before, abs=2)
    assert (run.warmup_runs, len(run.times)) == (5, 30)


def test_without_energy_a_gpu_runs_no_more_than_it_is_timed(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.001, device="cuda:0")
    run = run_protocol(lambda: None, meter, Plan(), takes_energy=False)
    assert (run.energy_j, run.energy_window_s) == (None, None)
    assert meter.log.count("call") == 35
    assert "start" not in meter.log


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_energy_is_taken_of_a_share_of_configurations_always_the_same(share: float) -> None:
    plan = Plan(energy_share=share)
    chosen = [plan.takes_energy(f"model {number}") for number in range(4000)]
    assert sum(chosen) == pytest.approx(4000 * share, abs=100 if 0 < share < 1 else 0)
    assert chosen == [plan.takes_energy(f"model {number}") for number in range(4000)]


def test_energy_of_long_calls_costs_no_more_calls(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.5)
    run = run_protocol(lambda: None, meter, Plan())
    assert run.energy_j == pytest.approx(50.0, rel=0.02)
    assert meter.log.count("call") == 35


def test_a_counter_that_stands_still_gives_nothing(make_meter: Callable[..., FakeMeter]) -> None:
    run = run_protocol(lambda: None, make_meter(call_s=0.01, power_w=0.0), Plan())
    assert (run.energy_j, run.energy_window_s) == (None, None)


def test_an_output_is_gone_before_the_next_call(make_meter: Callable[..., FakeMeter]) -> None:
    alive: list[int] = []

    class Output:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def call() -> Output:
        assert len(alive) == 0
        return Output()

    run_protocol(call, make_meter(call_s=0.01), Plan())


def test_the_counter_is_stopped_when_a_call_fails(make_meter: Callable[..., FakeMeter]) -> None:
    meter = make_meter(call_s=0.01)

    def call() -> None:
        if "start" in meter.log:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_protocol(call, meter, Plan())
    assert meter.log[-1] == "stop"
