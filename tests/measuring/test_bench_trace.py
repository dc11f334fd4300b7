"""Traces on the CPU of this machine: operators without kernels, and what is left behind."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dippm.costs.conditions import Conditions  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.measuring import bench as bench_module  # noqa: E402
from dippm.measuring.bench import Bench  # noqa: E402
from dippm.measuring.configuration import Configuration  # noqa: E402
from dippm.measuring.measurement import Outcome  # noqa: E402
from dippm.measuring.protocol import Plan  # noqa: E402

FORWARD = ["aten::linear", "aten::relu", "aten::linear"]


@pytest.fixture(name="bench")
def _bench() -> Bench:
    return Bench("cpu", Plan(warmup_runs=1, timed_runs=2))


@pytest.mark.parametrize("runtime", ["eager", "cuda-graph"])
def test_operators_of_an_eager_call_whatever_the_runtime(bench: Bench, models: Any, runtime: str) -> None:
    configuration = Configuration(batch=5, conditions=Conditions.parse(runtime=runtime))
    runs = bench.trace(models.Example(), configuration)
    assert [run.name for run in runs] == FORWARD
    assert [run.input_shapes[0] for run in runs] == [(5, 8), (5, 16), (5, 16)]
    assert not any(run.kernels or run.is_backward for run in runs)


def test_a_training_step(bench: Bench, models: Any) -> None:
    conditions = Conditions.parse(mode="training", optimizer="momentum")
    runs = bench.trace(models.Example(), Configuration(batch=2, conditions=conditions))
    assert [run.name for run in runs if run.name in FORWARD] == FORWARD
    assert "aten::threshold_backward" in [run.name for run in runs if run.is_backward]


def test_a_measured_model_is_traced_as_it_stands(bench: Bench, models: Any) -> None:
    list(bench.measure(models.Example(), [Configuration(batch=2)]))
    bench.trace(models.Example(), Configuration(batch=3))
    (after,) = bench.measure(models.Example(), [Configuration(batch=2)])
    assert (after.outcome, after.build_s) == (Outcome.OK, 0.0)


def test_a_converted_model_is_not_kept(bench: Bench, models: Any) -> None:
    conditions = Conditions.parse(precision="bf16")
    bench.trace(models.Example(), Configuration(batch=2, conditions=conditions))
    (after,) = bench.measure(models.Example(), [Configuration(batch=2)])
    assert after.outcome is Outcome.OK
    assert after.build_s > 0


def test_the_first_call_is_not_traced(bench: Bench, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = models.Tiny.forward
    monkeypatch.setattr(models.Tiny, "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    monkeypatch.setattr(bench_module, "trace_operators", lambda call, synchronise: tuple(calls))
    assert bench.trace(models.Example(), Configuration(batch=4)) == (4,)


@pytest.mark.parametrize("works", [True, False])
def test_an_error_leaves_no_model_and_asks_for_the_device(
    bench: Bench, models: Any, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    released: list[bool] = []
    monkeypatch.setattr(bench._meter, "is_usable", lambda: works)
    list(bench.measure(models.Example(), [Configuration(batch=2)]))
    monkeypatch.setattr(bench._meter, "release_memory", lambda: released.append(True))
    monkeypatch.setattr(bench_module, "trace_operators", _raise)
    with pytest.raises(RuntimeError, match="CUDA error"):
        bench.trace(models.Example(), Configuration(batch=2))
    assert bench.is_usable is works
    assert bool(released) is works
    (after,) = bench.measure(models.Example(), [Configuration(batch=2)])
    assert after.build_s > 0


def test_what_a_configuration_cannot_do_is_told(bench: Bench, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, device: str) -> Any:
        raise UnsupportedError("no such model", code="recipe.build_failed")

    monkeypatch.setattr(models.Example, "build", refuse)
    with pytest.raises(UnsupportedError, match="no such model"):
        bench.trace(models.Example(), Configuration(batch=2))
    assert bench.is_usable


def _raise(*_: object) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
