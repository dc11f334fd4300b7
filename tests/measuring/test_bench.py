"""Real measurements on the CPU of this machine, in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dippm.costs.conditions import Conditions  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.measuring.bench import Bench  # noqa: E402
from dippm.measuring.configuration import Configuration, Engine  # noqa: E402
from dippm.measuring.cpu_meter import CpuMeter  # noqa: E402
from dippm.measuring.device_names import describe_device  # noqa: E402
from dippm.measuring.measurement import Outcome  # noqa: E402
from dippm.measuring.meter import CallTime, MemoryReading  # noqa: E402
from dippm.measuring.protocol import Plan  # noqa: E402

TRAINING = Conditions.parse(mode="training", optimizer="adam")


def test_a_measurement_is_whole(models: Any) -> None:
    (measured,) = Bench("cpu").measure(models.Example(), [Configuration(batch=4)])
    assert measured.outcome is Outcome.OK
    assert measured.device == describe_device("cpu")
    assert (measured.warmup_runs, measured.timed_runs) == (5, 30)
    assert measured.latency_ms is not None
    assert measured.latency_std_ms is not None
    assert measured.latency_median_ms is not None
    assert measured.latency_min_ms is not None
    assert measured.latency_max_ms is not None
    assert 0 < measured.latency_min_ms <= measured.latency_median_ms <= measured.latency_max_ms < 1000
    assert measured.latency_min_ms <= measured.latency_ms <= measured.latency_max_ms
    assert measured.duration_s > 30 * measured.latency_ms / 1000
    assert measured.build_s > 0
    assert measured.device_time_ms is None
    assert measured.software.framework.startswith("torch ")
    assert measured.software.threads >= 1
    assert measured.software.cuda == ""
    assert measured.measured_at.endswith("+00:00")
    assert measured.fits is True


def test_one_model_serves_all_configurations(models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    asked = [Configuration(batch=1), Configuration(batch=2, conditions=TRAINING), Configuration(batch=3)]
    results = list(bench.measure(models.Example(), asked))
    assert [result.outcome for result in results] == [Outcome.OK] * 3
    assert [result.build_s > 0 for result in results] == [True, False, False]
    assert 0 < bench.busy_s <= sum(result.duration_s for result in results)


def test_a_model_in_another_format_is_built_anew(models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    asked = [Configuration(batch=1, conditions=Conditions.parse(precision="bf16")), Configuration(batch=1)]
    results = list(bench.measure(models.Example(), asked))
    assert [result.outcome for result in results] == [Outcome.OK] * 2
    assert results[1].build_s > 0


def test_a_model_that_is_stored_in_the_format_serves_all_rows(models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    conditions = Conditions.parse(precision="bf16")
    asked = [Configuration(batch=batch, conditions=conditions) for batch in (1, 2)] + [Configuration(batch=1)]
    results = list(bench.measure(models.Example(kind="Halved"), asked))
    assert [result.outcome for result in results] == [Outcome.OK] * 3
    assert [result.build_s > 0 for result in results] == [True, False, False]


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [
        ("Undefined", Outcome.NOT_FINITE, "NaN"),
        ("Wrong", Outcome.FAILED, "ValueError: no such thing"),
    ],
)
@pytest.mark.parametrize("conditions", [Conditions(), TRAINING])
def test_bad_ends(kind: str, outcome: Outcome, message: str, conditions: Conditions, models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    bad, good = Configuration(batch=2, conditions=conditions), Configuration(batch=2)
    (measured,) = bench.measure(models.Example(kind=kind), [bad])
    assert measured.outcome is outcome
    assert message in measured.message
    assert "\n" not in measured.message
    assert (measured.latency_ms is not None) is (outcome is Outcome.NOT_FINITE)
    (after,) = bench.measure(models.Example(), [good])
    assert after.outcome is Outcome.OK


def test_onnxruntime_runs_the_same_model(models: Any) -> None:
    pytest.importorskip("onnxscript")
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    (measured,) = bench.measure(models.Example(), [Configuration(batch=2, engine=Engine.ONNXRUNTIME)])
    assert measured.outcome is Outcome.OK, measured.message
    assert measured.software.framework.startswith("onnxruntime ")


class FakeGpu(CpuMeter):
    """The CPU, said to be a GPU: what is alive when memory is released, and when the device is asked after."""

    def __init__(self) -> None:
        super().__init__()
        self.device = "cpu:0"  # to PyTorch the CPU, and to what is tested not the one without an index
        self.log: list[str] = []
        self.alive: list[weakref.ref[object]] = []
        self.works = True

    def time_call(self, call: Callable[[], object]) -> tuple[object, CallTime]:
        output, took = super().time_call(call)
        if isinstance(output, torch.Tensor):
            self.alive.append(weakref.ref(output))
        self.log.append("call")
        return output, took

    def release_memory(self) -> None:
        super().release_memory()
        self.log.append("release" if all(reference() is None for reference in self.alive) else "leak")

    def base_memory_mb(self) -> float | None:
        self.log.append("base")
        return 400.0

    def read_memory(self) -> MemoryReading:
        return MemoryReading(memory_mb=700.0, memory_source="nvml-process", context_mb=500.0, reserved_peak_mb=200.0)

    def is_usable(self) -> bool:
        self.log.append("probe")
        return self.works


@pytest.fixture(name="gpu")
def _gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    from dippm.measuring import bench

    gpu = FakeGpu()
    monkeypatch.setattr(bench, "open_meter", lambda device: gpu)
    return gpu


def test_nothing_of_a_row_is_left_in_the_next(gpu: FakeGpu, models: Any) -> None:
    bench = Bench("cuda", Plan(warmup_runs=2, timed_runs=3))
    results = list(bench.measure(models.Example(), [Configuration(batch=1), Configuration(batch=2)]))
    assert [result.outcome for result in results] == [Outcome.OK] * 2, results[0].message
    calls = ["call"] * 5
    assert gpu.log == ["release", "base", "release", *calls, "release", *calls, "release"]


def test_after_a_conversion_memory_is_released_before_the_next_build(gpu: FakeGpu, models: Any) -> None:
    bench = Bench("cuda", Plan(warmup_runs=2, timed_runs=3))
    asked = [Configuration(batch=1, conditions=Conditions.parse(precision="bf16")), Configuration(batch=1)]
    assert [result.outcome for result in bench.measure(models.Example(), asked)] == [Outcome.OK] * 2
    assert "leak" not in gpu.log
    assert gpu.log.count("base") == 2


def test_the_context_is_the_rows_own(gpu: FakeGpu, models: Any) -> None:
    bench = Bench("cuda", Plan(warmup_runs=2, timed_runs=3))
    (good,) = bench.measure(models.Example(), [Configuration(batch=1)])
    assert (good.memory_mb, good.context_mb, good.reserved_peak_mb) == (700, 500, 200)
    (bad,) = bench.measure(models.Example(kind="Wrong"), [Configuration(batch=1)])
    assert (bad.memory_mb, bad.context_mb) == (None, 400)


def test_after_a_failure_the_device_is_asked(gpu: FakeGpu, models: Any) -> None:
    bench = Bench("cuda", Plan(warmup_runs=2, timed_runs=3))
    (bad,) = bench.measure(models.Example(kind="Wrong"), [Configuration(batch=1)])
    assert bad.outcome is Outcome.FAILED
    assert gpu.log[-2:] == ["probe", "release"]
    assert bench.is_usable
    gpu.works = False
    list(bench.measure(models.Example(kind="Wrong"), [Configuration(batch=1)]))
    assert gpu.log[-1] == "probe"
    assert not bench.is_usable


def test_a_capture_that_fails_ends_the_process(gpu: FakeGpu, models: Any) -> None:
    bench = Bench("cuda", Plan(warmup_runs=2, timed_runs=3))
    (bad,) = bench.measure(
        models.Example(), [Configuration(batch=1, conditions=Conditions.parse(runtime="cuda-graph"))]
    )
    assert bad.outcome is Outcome.FAILED
    assert not bench.is_usable


def test_the_framework_names_the_libraries_that_models_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.measuring import bench

    def version(name: str) -> str:
        if name == "transformers":
            raise metadata.PackageNotFoundError(name)
        return {"timm": "1.0", "torchvision": "0.28.0+cu130"}[name]

    monkeypatch.setattr(bench.metadata, "version", version)
    bench._framework.cache_clear()
    try:
        framework = bench._framework(Engine.TORCH)
    finally:
        bench._framework.cache_clear()
    assert framework == f"torch {torch.__version__.partition('+')[0]}, timm 1.0, torchvision 0.28.0"


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:99"])
def test_devices_that_are_not_there(device: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        describe_device(device)
    assert caught.value.code == "device.unavailable"
