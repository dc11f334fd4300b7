"""choose_mig: Eq. 2 of the paper to the letter, and the default policy that closes its gaps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.devices import DeviceSpec, find_device, load_catalog
from dippm.errors import UnsupportedError, UsageError
from dippm.placement import MigPolicy, choose_mig

GB = 1024.0
A100 = find_device("A100-SXM4-40GB")
WITH_MIG = [spec for spec in load_catalog() if spec.mig_profiles]


@pytest.mark.parametrize(
    ("alpha_mb", "profile"),
    [
        (1e-9, "1g.5gb"),
        (math.nextafter(5 * GB, 0), "1g.5gb"),
        (5 * GB, None),
        (math.nextafter(5 * GB, math.inf), "2g.10gb"),
        (math.nextafter(10 * GB, 0), "2g.10gb"),
        (10 * GB, None),
        (math.nextafter(10 * GB, math.inf), "3g.20gb"),
        (math.nextafter(20 * GB, 0), "3g.20gb"),
        (20 * GB, None),
        (math.nextafter(20 * GB, math.inf), "7g.40gb"),
        (math.nextafter(40 * GB, 0), "7g.40gb"),
        (40 * GB, None),
        (41 * GB, None),
        (1e9, None),
    ],
)
def test_paper_policy_is_equation_2(alpha_mb: float, profile: str | None) -> None:
    assert choose_mig(alpha_mb, A100, policy="paper") == profile
    assert choose_mig(alpha_mb, find_device("A100-PCIE-40GB"), policy=MigPolicy.PAPER) == profile


def test_paper_policy_ignores_the_interval() -> None:
    assert choose_mig(4000, A100, interval_high_mb=9000, policy="paper") == "1g.5gb"


@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "H100", "A30", "T4", "1g.5gb@A100"])
def test_paper_policy_is_for_the_a100_40gb(device: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Eq\. 2") as caught:
        choose_mig(1000, find_device(device), policy="paper")

    assert caught.value.code == "placement.policy_device"


@pytest.mark.parametrize(
    ("memory_mb", "high_mb", "profile"),
    [
        (100, None, "1g.5gb"),
        (4864, None, "1g.5gb"),
        (4864, 4864, "1g.5gb"),
        (4864.001, None, "1g.10gb"),
        (4000, 5000, "1g.10gb"),
        (9000, 4864, "1g.5gb"),
        (9856, None, "1g.10gb"),
        (9857, None, "3g.20gb"),
        (19968, None, "3g.20gb"),
        (19969, None, "7g.40gb"),
        (40192, None, "7g.40gb"),
        (40193, None, None),
        (100, 1e6, None),
    ],
)
def test_safe_policy_compares_the_upper_end_with_what_the_slice_offers(
    memory_mb: float, high_mb: float | None, profile: str | None
) -> None:
    assert choose_mig(memory_mb, A100, interval_high_mb=high_mb) == profile


@pytest.mark.parametrize("device", ["T4", "RTX 4090", "1g.5gb@A100"])
def test_devices_without_mig_have_no_slice(device: str) -> None:
    assert choose_mig(100, find_device(device)) is None


@pytest.mark.parametrize("spec", WITH_MIG, ids=lambda spec: spec.name)
def test_every_slice_is_chosen_at_its_own_size_or_a_cheaper_equal_one(spec: DeviceSpec) -> None:
    for profile in spec.mig_profiles:
        chosen = choose_mig(profile.memory_mb, spec)
        taken = next(each for each in spec.mig_profiles if each.name == chosen)

        assert taken.memory_mb == profile.memory_mb
        assert taken.compute_slices <= profile.compute_slices


@given(
    st.sampled_from(WITH_MIG),
    st.floats(min_value=1e-3, max_value=2e5),
    st.floats(min_value=0, max_value=2e5),
    st.none() | st.floats(min_value=0, max_value=1e5),
)
def test_more_memory_never_yields_a_smaller_slice(
    device: DeviceSpec, memory_mb: float, more_mb: float, width_mb: float | None
) -> None:
    sizes = {profile.name: profile.memory_mb for profile in device.mig_profiles}

    def chosen_size(memory: float) -> float:
        high = None if width_mb is None else memory + width_mb
        name = choose_mig(memory, device, interval_high_mb=high)
        return math.inf if name is None else sizes[name]

    assert chosen_size(memory_mb) <= chosen_size(memory_mb + more_mb)
    assert chosen_size(memory_mb) >= memory_mb + (width_mb or 0)


@pytest.mark.parametrize("memory_mb", [0, -1, math.nan, math.inf])
def test_bad_memory_is_refused(memory_mb: float) -> None:
    with pytest.raises(UsageError) as caught:
        choose_mig(memory_mb, A100)

    assert caught.value.code == "placement.memory"


@pytest.mark.parametrize("high_mb", [0, -1, math.nan, math.inf])
def test_bad_interval_is_refused(high_mb: float) -> None:
    with pytest.raises(UsageError) as caught:
        choose_mig(100, A100, interval_high_mb=high_mb)

    assert caught.value.code == "placement.memory"


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="safe, paper") as caught:
        choose_mig(100, A100, policy="bold")

    assert caught.value.code == "placement.policy"
