"""DeviceSpec and MigProfile: what they hold together, and what they refuse."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest

from dippm.devices import DeviceSpec, MigProfile, latest_figure
from dippm.errors import UsageError

FIGURES: dict[str, Any] = {
    "name": "Test GPU",
    "architecture": "ampere",
    "compute_capability": (8, 0),
    "sm_count": 108,
    "fp32_lanes_per_sm": 64,
    "base_clock_mhz": 1095.0,
    "boost_clock_mhz": 1410.0,
    "memory_mb": 40960.0,
    "bandwidth_gb_s": 1555.0,
    "l2_mb": 40.0,
    "board_power_w": 400.0,
    "peak_tflops": {"fp32": 19.5},
}
PROFILE: dict[str, Any] = {
    "name": "1g.5gb",
    "compute_slices": 1,
    "memory_slices": 1,
    "sm_count": 14,
    "memory_mb": 4864,
    "max_instances": 7,
}
WHOLE = PROFILE | {"name": "7g.40gb", "compute_slices": 7, "memory_slices": 8, "memory_mb": 40000, "max_instances": 1}


def test_spec_derives_peak_and_capacity() -> None:
    spec = DeviceSpec(**FIGURES)

    assert spec.fp32_arithmetic_tflops == pytest.approx(108 * 64 * 2 * 1.41e9 / 1e12)
    assert spec.capacity_mb == 40960
    assert dataclasses.replace(spec, usable_memory_mb=40325).capacity_mb == 40325
    assert not spec.is_mig_slice


def test_spec_is_hashable_comparable_and_picklable() -> None:
    spec = DeviceSpec(**FIGURES)

    assert hash(spec) == hash(DeviceSpec(**FIGURES))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert dataclasses.replace(spec, peak_tflops={"fp32": 19.0}) != spec


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", " ", "non-empty"),
        ("name", 3, "non-empty"),
        ("name", "My GPU\n", "one line"),
        ("name", "My \x1b[1m GPU", "one line"),
        ("aliases", ("good", "a\tb"), "one line"),
        ("aliases", ("good", 5), "one line"),
        ("architecture", "maxwell", "one of pascal"),
        ("architecture", "ada", r"\[8, 9\] where the architecture is ada"),
        ("compute_capability", (7, 5), r"from \[8, 0\] to \[8, 8\] where the architecture is ampere"),
        ("compute_capability", (8,), "major and minor"),
        ("compute_capability", (8, -1), "0 to 99"),
        ("compute_capability", (8, "0"), "whole number"),
        ("sm_count", 0, "1 to 1024"),
        ("sm_count", 10.5, "whole number"),
        ("sm_count", True, "whole number"),
        ("sm_count", "108", "whole number"),
        ("base_clock_mhz", 1.095, "MHz"),
        ("boost_clock_mhz", 1000.0, "at least base"),
        ("memory_mb", 40, "MiB"),
        ("memory_mb", math.nan, "MiB"),
        ("bandwidth_gb_s", 1.5, "GB/s"),
        ("bandwidth_gb_s", math.inf, "GB/s"),
        ("l2_mb", -1, "MiB"),
        ("board_power_w", 0, " W"),
        ("usable_memory_mb", 50000, "MiB"),
        ("peak_tflops", {}, "at least fp32"),
        ("peak_tflops", {"fp32": 19500.0}, "factor of two"),
        ("peak_tflops", {"fp32": 19.5, "fp8": 1.0}, "one of fp64"),
        ("peak_tflops", {"fp32": 19.5, "fp16": 0.0}, "TFLOP/s"),
        ("mig_profiles", (MigProfile(**PROFILE), MigProfile(**PROFILE)), "without repeats"),
        ("mig_profiles", (MigProfile(**PROFILE | {"memory_mb": 50000}),), "within the card"),
        (
            "mig_profiles",
            (MigProfile(**PROFILE), MigProfile(**PROFILE | {"name": "x", "memory_mb": 99})),
            "smallest first",
        ),
        ("mig_profiles", (MigProfile(**PROFILE),), "the 1 memory slices of the largest profile; name one that takes"),
        ("mig_profiles", (MigProfile(**PROFILE | {"memory_slices": 7}),), "within the 7 memory slices"),
        ("mig_profiles", (MigProfile(**PROFILE), MigProfile(**WHOLE | {"compute_slices": 6})), "within the 6 compute"),
        (
            "mig_profiles",
            (MigProfile(**PROFILE | {"placements": (0, 1, 2, 3, 4, 5, 7)}), MigProfile(**WHOLE | {"memory_slices": 7})),
            "places where 1 of 7 memory slices still follow",
        ),
    ],
)
def test_spec_refuses_value(field: str, value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        DeviceSpec(**FIGURES | {field: value})

    assert caught.value.code == "device.value"
    assert "Got" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "1g.5gb\n"),
        ("compute_slices", 0),
        ("compute_slices", 8),
        ("memory_slices", 9),
        ("sm_count", 0),
        ("memory_mb", 0),
        ("max_instances", 8),
        ("l2_slices", 0),
        ("l2_slices", 2),
        ("placements", (1, 0)),
        ("placements", (0, 0)),
        ("placements", (8,)),
        ("placements", (0,)),
    ],
)
def test_mig_profile_refuses_value(field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        MigProfile(**PROFILE | {field: value})

    assert caught.value.code == "device.value"


@pytest.mark.parametrize(
    ("architecture", "capability", "figure"),
    [
        ("pascal", (6, 0), "first"),
        ("volta", (7, 0), "first"),
        ("turing", (7, 5), "first"),
        ("ampere", (8, 0), "last"),
        ("blackwell", (10, 3), "last"),
    ],
)
def test_a_figure_holds_until_the_next_one(architecture: str, capability: tuple[int, int], figure: str) -> None:
    device = DeviceSpec(**FIGURES | {"architecture": architecture, "compute_capability": capability})
    assert latest_figure({(8, 0): "last", (7, 0): "first"}, device) == figure


def test_a_card_has_the_memory_slices_of_its_largest_profile() -> None:
    assert DeviceSpec(**FIGURES).memory_slices == 0
    profiles = tuple(MigProfile(**each) for each in (PROFILE | {"placements": tuple(range(7))}, WHOLE))
    assert DeviceSpec(**FIGURES | {"mig_profiles": profiles}).memory_slices == 8
