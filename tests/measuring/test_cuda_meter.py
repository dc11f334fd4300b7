"""The GPU meter, over a stand-in for the driver: what is read when, and from where."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

MIB = 2**20


class FakeCuda:
    """Stands for torch.cuda: an allocator with counters, events with a clock, and a log of what was called."""

    def __init__(self, nvml: Any) -> None:
        self.log: list[str] = []
        self.nvml = nvml
        self.reserved = 0
        self.fault: Exception | None = None
        self.clock_ms = 0.0

    def init(self) -> None:
        self.log.append("init")
        self.nvml.cards[1].used += 500 * MIB  # the context

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA H100 NVL", uuid="bb", major=9, minor=0)

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.clock_ms)
        event.elapsed_time = lambda other: other.at - event.at
        return event


@pytest.fixture(name="cuda")
def _cuda(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    from dippm.measuring import cuda_meter

    cuda = FakeCuda(fake_nvml)
    real_ones = torch.ones
    monkeypatch.setattr(cuda_meter, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(cuda_meter, "LONGEST_TICK_S", 0.01)

    def ones(*size: int, device: str) -> Any:
        if cuda.fault is not None:
            raise cuda.fault
        return real_ones(*size)

    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cuda.log.append("clear"), raising=False)
    replacements = {
        "init": cuda.init,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "get_device_properties": cuda.get_device_properties,
        "synchronize": lambda index: cuda.log.append("synchronize"),
        "empty_cache": cuda.empty_cache,
        "memory_reserved": lambda index: cuda.reserved,
        "max_memory_allocated": lambda index: 30 * MIB,
        "max_memory_reserved": lambda index: cuda.reserved + 40 * MIB,
        "reset_peak_memory_stats": lambda index: cuda.log.append("reset"),
        "Event": cuda.event,
    }
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    return cuda


def open_meter() -> Any:
    from dippm.measuring.cuda_meter import CudaMeter

    return CudaMeter(0)


def test_the_name_is_nvmls_without_the_vendor(cuda: FakeCuda) -> None:
    assert open_meter().device_name == "H100 NVL"


def test_memory_of_the_process(cuda: FakeCuda) -> None:
    meter = open_meter()
    cuda.nvml.cards[1].processes = [(os.getpid(), 700 * MIB)]
    cuda.reserved = 200 * MIB
    assert meter.base_memory_mb() == 500
    reading = meter.read_memory()
    # NVML counts 500 MiB beside the allocator's 200, which held 240 at its peak.
    assert (reading.memory_mb, reading.context_mb, reading.memory_source) == (740, 500, "nvml-process")
    assert (reading.allocated_peak_mb, reading.reserved_peak_mb) == (30, 240)


@pytest.mark.parametrize("seen", [[], [(1, 50 * MIB)], [(os.getpid(), None)], [(os.getpid(), 100 * MIB)]])
def test_in_a_container_what_others_held_before_is_taken_off(
    cuda: FakeCuda, seen: list[tuple[int, int | None]]
) -> None:
    meter = open_meter()  # others hold 1000 MiB, then the context comes
    cuda.nvml.cards[1].processes = seen
    cuda.nvml.cards[1].used += 200 * MIB
    cuda.reserved = 200 * MIB
    reading = meter.read_memory()
    assert (reading.memory_mb, reading.context_mb, reading.memory_source) == (740, 500, "nvml-device")
    assert meter.base_memory_mb() == 500


def test_in_a_container_another_process_may_carry_our_id(cuda: FakeCuda) -> None:
    cuda.nvml.cards[1].processes = [(os.getpid(), 900 * MIB)]
    meter = open_meter()
    cuda.nvml.cards[1].used += 200 * MIB
    cuda.reserved = 200 * MIB
    reading = meter.read_memory()
    assert (reading.memory_mb, reading.context_mb, reading.memory_source) == (740, 500, "nvml-device")


def test_in_a_container_memory_that_another_process_gave_back_makes_ours_unknown(cuda: FakeCuda) -> None:
    meter = open_meter()
    cuda.reserved = 200 * MIB
    cuda.nvml.cards[1].used -= 400 * MIB
    reading = meter.read_memory()
    assert (reading.memory_mb, reading.context_mb, reading.memory_source) == (None, None, None)
    assert (reading.allocated_peak_mb, reading.reserved_peak_mb) == (30, 240)


def test_memory_of_a_slice_in_a_container(cuda: FakeCuda) -> None:
    from fake_nvml import Card

    slice_ = Card("MIG-bb", "", name="NVIDIA H100 NVL MIG 1g.12gb", used=20 * MIB, energy_mj=None)
    cuda.nvml.cards[0].slices = [slice_]
    meter = open_meter()
    slice_.used += 600 * MIB
    cuda.reserved = 200 * MIB
    assert meter.device_name == "H100 NVL MIG 1g.12gb"
    assert (meter.read_memory().memory_mb, meter.base_memory_mb()) == (640, 400)


def test_a_device_on_which_cuda_does_not_start_is_not_available(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dippm.errors import UnsupportedError
    from dippm.measuring import meter
    from dippm.measuring.device_names import describe_device

    text = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with `TORCH_USE_CUDA_DSA` to ..."
    cuda.fault = torch.AcceleratorError(text)
    with pytest.raises(UnsupportedError, match=r"AcceleratorError: .* busy or unavailable\. See") as caught:
        meter.open_meter("cuda")
    assert caught.value.code == "device.unavailable"
    assert "DSA" not in str(caught.value)

    def refuse(index: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    with pytest.raises(UnsupportedError, match="driver on your system is too old") as caught:
        describe_device("cuda")
    assert caught.value.code == "device.unavailable"


def test_a_call_is_timed_to_its_end(cuda: FakeCuda) -> None:
    meter = open_meter()
    cuda.log.clear()

    def call() -> str:
        cuda.log.append("call")
        cuda.clock_ms += 4.0
        return "output"

    output, took = meter.time_call(call)
    assert output == "output"
    assert cuda.log == ["call", "synchronize"]
    assert took.device_s == pytest.approx(4e-3)
    assert took.wall_s > 0


def test_energy_sources(cuda: FakeCuda) -> None:
    meter = open_meter()
    assert meter.energy.source == "nvml-total-energy"
    assert meter.energy.read_j() == 5000
    assert meter.idle_power_w is None  # the made-up counter stands still
    cuda.nvml.cards[1].energy_mj = None
    assert open_meter().energy.source == "nvml-power"


def test_without_nvml_the_allocator_is_left(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.measuring import nvml

    monkeypatch.setattr(nvml, "_load", lambda: None)
    meter = open_meter()
    reading = meter.read_memory()
    assert meter.energy is None
    assert meter.idle_power_w is None
    assert meter.base_memory_mb() is None
    assert (reading.memory_mb, reading.memory_source, reading.reserved_peak_mb) == (None, None, 40)
    assert meter.device_name == "H100 NVL"
    assert meter.state().sm_clock_mhz is None
    assert meter.software("torch 2").driver == ""


def test_between_configurations_memory_goes_back(cuda: FakeCuda) -> None:
    meter = open_meter()
    cuda.log.clear()
    meter.release_memory()
    meter.reset_peaks()
    assert cuda.log == ["clear", "empty_cache", "reset"]


def test_builds_without_cublas_have_nothing_to_clear(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    meter = open_meter()
    cuda.log.clear()
    meter.release_memory()
    assert cuda.log == ["empty_cache"]


def test_after_a_failure_a_kernel_tells_whether_the_device_still_works(cuda: FakeCuda) -> None:
    meter = open_meter()
    cuda.log.clear()
    assert meter.is_usable()
    assert cuda.log == ["clear", "empty_cache", "synchronize"]
    cuda.fault = RuntimeError("CUDA driver error: an illegal memory access was encountered")
    assert not meter.is_usable()


def test_idle_power_is_taken_from_tick_to_tick(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.measuring import cuda_meter

    now = SimpleNamespace(s=0.037)
    counter = SimpleNamespace(
        source="fake",
        start=lambda: None,
        stop=lambda: None,
        read_j=lambda: 100.0 * (now.s // 0.1) * 0.1,
    )
    monkeypatch.setattr(cuda_meter, "LONGEST_TICK_S", 0.15)
    monkeypatch.setattr(cuda_meter, "_IDLE_SECONDS", 0.25)
    monkeypatch.setattr(cuda_meter.time, "perf_counter", lambda: now.s)
    monkeypatch.setattr(cuda_meter.time, "sleep", lambda seconds: setattr(now, "s", now.s + seconds))
    # From anywhere to anywhere, 0.25 s hold two ticks or three: 80 W or 120 W.
    assert cuda_meter._idle_power_w(counter) == pytest.approx(100, rel=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_real_device(models: Any) -> None:
    from dippm.costs.conditions import Conditions
    from dippm.measuring.bench import Bench
    from dippm.measuring.configuration import Configuration
    from dippm.measuring.measurement import Outcome

    bench = Bench("cuda")
    asked = [
        Configuration(batch=4),
        Configuration(batch=4, conditions=Conditions.parse(precision="amp", mode="training", optimizer="adam")),
        Configuration(batch=4, conditions=Conditions.parse(runtime="cuda-graph")),
        Configuration(batch=4, conditions=Conditions.parse(precision="bf16")),
        Configuration(batch=4),
    ]
    results = list(bench.measure(models.Example(), asked))
    # What came between left nothing in the allocator.
    assert results[-1].reserved_peak_mb == results[0].reserved_peak_mb
    for measured in results:
        assert measured.outcome is Outcome.OK, measured.message
        assert measured.device_time_ms is not None
        assert measured.device_time_ms > 0
        assert measured.reserved_peak_mb is not None
        if measured.memory_mb is not None and measured.context_mb is not None:
            assert measured.memory_mb - measured.context_mb == pytest.approx(measured.reserved_peak_mb)
