"""Labels made up for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import DeviceState, Measurement, Outcome, SoftwareStack

FIGURES = (
    "duration_s",
    "build_s",
    "latency_ms",
    "latency_std_ms",
    "latency_median_ms",
    "latency_min_ms",
    "latency_max_ms",
    "device_time_ms",
    "energy_j",
    "energy_window_s",
    "idle_power_w",
    "memory_mb",
    "context_mb",
    "allocated_peak_mb",
    "reserved_peak_mb",
)


def make_label(
    number: int = 0,
    *,
    model: int | None = None,
    family: str = "resnet",
    device: str = "A100-SXM4-40GB",
    batch: int = 8,
    conditions: Conditions | None = None,
    outcome: Outcome = Outcome.OK,
    message: str = "",
    latency_ms: float | None = 7.25,
    energy_j: float | None = 1.5,
    memory_mb: float | None = 1240.0,
    repeat: int = 0,
    graph_hash: str = "",
    collection: str = "dippm-zoo",
    source: str = "dippm",
) -> Label:
    """A label; ``number`` makes another model of it, and ``model`` says so where it is to be the same model."""
    width = number if model is None else model
    recipe = Recipe(
        collection=collection,
        family=family,
        architecture="timm:resnet",
        arguments={"depths": (2, 2, 2, 2), "width": width, "ratio": 0.25, "is_deep": True, "norm": "batch"},
        inputs=InputShapes(positional=(InputEntry(shape=(3, 224, 224)),)),
        batch=batch,
    )
    return Label(
        recipe=recipe,
        configuration=Configuration(batch=batch, conditions=conditions or Conditions()),
        measurement=Measurement(
            outcome=outcome,
            message=message,
            device=device,
            measured_at="2026-01-01T00:00:00+00:00",
            duration_s=1.5,
            warmup_runs=5,
            timed_runs=30,
            latency_ms=latency_ms,
            energy_j=energy_j,
            memory_mb=memory_mb,
            state=DeviceState(sm_clock_mhz=1410.0, throttle_reasons=""),
            software=SoftwareStack(driver="550.54", framework="torch 2.8.0", threads=16),
        ),
        repeat=repeat,
        graph_hash=graph_hash,
        source=source,
    )


@pytest.fixture(name="make_label", scope="session")
def _make_label() -> Callable[..., Label]:
    return make_label


@pytest.fixture(scope="session")
def rich_label() -> Label:
    """A label with every field set, named inputs and texts of many kinds among them."""
    base = make_label()
    fields: dict[str, Any] = {name: 0.1 + position / 3 for position, name in enumerate(FIGURES)}
    return replace(
        base,
        recipe=replace(
            base.recipe,
            arguments={"sizes": (1, 2), "rates": (0.1, 1e-300), "names": ("ä", "'; --"), "none": (), "big": 2**40},
            inputs=InputShapes(
                named={
                    "z_last": InputEntry(shape=(384,)),
                    "a_first": InputEntry(shape=()),
                }
            ),
        ),
        configuration=Configuration(batch=8, conditions=Conditions.parse(mode="training", optimizer="adamw")),
        measurement=Measurement(
            outcome=Outcome.NOT_FINITE,
            message='a "quoted" line; 値 \U0001f642',
            device="H200",
            measured_at="2026-01-02T03:04:05+00:00",
            warmup_runs=5,
            timed_runs=30,
            energy_source="nvml-total-energy",
            memory_source="nvml-process",
            state=DeviceState(
                sm_clock_mhz=1980.0,
                memory_clock_mhz=2619.0,
                temperature_c=41.5,
                power_limit_w=700.0,
                throttle_reasons="sw_power_cap,gpu_idle",
            ),
            software=SoftwareStack(
                driver="570.1",
                cuda="12.8",
                cudnn="9.7",
                framework="torch 2.13.0",
                python="3.11.7",
                platform="Linux-6.1-x86_64",
                host_cpu="a processor",
                threads=8,
            ),
            **fields,
        ),
        repeat=1,
        graph_hash="0123456789abcdef" * 2,
        source="somebody else",
    )
