from __future__ import annotations

from pathlib import Path

import pytest

from dippm.cli.options import find_devices, find_one_device, parse_batches, parse_one_batch, parse_prices
from dippm.errors import UnsupportedError, UsageError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1", [1]), ("1,8,32", [1, 8, 32]), (" 4 , 2 ", [4, 2]), ("1_024", [1024]), ("0,-3", [0, -3]),
        ("8,1,8,08,1", [8, 1]),
    ],
)  # fmt: skip
def test_batches(text: str, sizes: list[int]) -> None:
    assert parse_batches([text]) == sizes


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1.5", "8 16", "1,"])
def test_batches_must_be_whole_numbers(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_batches([text])
    assert caught.value.code == "batch.invalid"
    assert f"'{text}'" in str(caught.value)


def test_what_is_given_twice_is_joined() -> None:
    assert parse_batches(["8", "1,8", "2"]) == [8, 1, 2]
    assert [spec.name for spec in find_devices(["A100", "T4,A100"], None)] == ["A100-SXM4-40GB", "Tesla T4"]
    assert parse_prices(["A100=1.2", "T4=0.35"]) == {"A100": 1.2, "T4": 0.35}
    with pytest.raises(UsageError, match="two prices"):
        parse_prices(["A100=1", "A100=2"])


def test_one_batch() -> None:
    assert parse_one_batch("7") == 7
    with pytest.raises(UsageError) as caught:
        parse_one_batch("7,8")
    assert caught.value.code == "batch.invalid"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("T4,T4", ["Tesla T4"]),
        ("T4,A100,tesla t4,A100-SXM4-40GB", ["Tesla T4", "A100-SXM4-40GB"]),
        ("A100,1g.5gb@A100,1g.5gb@A100-SXM4-40GB", ["A100-SXM4-40GB", "1g.5gb@A100-SXM4-40GB"]),
        (None, ["A100-SXM4-40GB"]),
    ],
)
def test_a_device_counts_once_whatever_it_is_called(names: str | None, found: list[str]) -> None:
    assert [spec.name for spec in find_devices(None if names is None else [names], None)] == found


@pytest.mark.parametrize("names", ["", ",", "A100,,T4", "A100,"])
def test_devices_are_joined_by_single_commas(names: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_devices([names], None)
    assert caught.value.code == "device.invalid"


def test_slices_of_the_card_in_a_file_are_devices(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    file.write_text(
        """
        name = "My GPU"
        architecture = "ampere"
        compute_capability = [8, 0]
        sm_count = 56
        fp32_lanes_per_sm = 64
        base_clock_mhz = 900
        boost_clock_mhz = 1400
        memory_mb = 24576
        bandwidth_gb_s = 900
        l2_mb = 24
        board_power_w = 165
        peak_tflops = { fp32 = 10.0 }
        mig_profiles = [
            {name="1g.6gb", compute_slices=1, memory_slices=1, sm_count=14, memory_mb=5952, max_instances=4},
            {name="4g.24gb", compute_slices=4, memory_slices=4, sm_count=56, memory_mb=24125, max_instances=1},
        ]
        """,
        encoding="utf-8",
    )
    for names, expected in (
        ("1g.6gb@My GPU", ["1g.6gb@My GPU"]),
        ("T4,1G.6gb@my gpu", ["Tesla T4", "1g.6gb@My GPU"]),
        ("1g.6gb@My GPU,My GPU", ["My GPU", "1g.6gb@My GPU"]),
        ("1g.5gb@A100", ["My GPU", "1g.5gb@A100-SXM4-40GB"]),
    ):
        assert [spec.name for spec in find_devices([names], str(file))] == expected
    assert find_one_device("1g.6gb@My GPU", str(file)).sm_count == 14
    with pytest.raises(UnsupportedError, match=r"'My GPU' has no MIG profile '2g'. It has: 1g.6gb, 4g.24gb"):
        find_devices(["2g@My GPU"], str(file))


def test_one_device_under_two_names_is_one() -> None:
    assert find_one_device("A100,A100-SXM4-40GB", None).name == "A100-SXM4-40GB"
    with pytest.raises(UsageError) as caught:
        find_one_device("A100,T4", None)
    assert caught.value.code == "device.invalid"
