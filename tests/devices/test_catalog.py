"""The catalogue's figures, the names it answers to, MIG slices as devices, and device files."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.devices import (
    ARCHITECTURES,
    DEVICE_FILE_REQUIRED,
    find_device,
    load_catalog,
    load_device_file,
    slice_device,
)
from dippm.errors import UnsupportedError, UsageError

ROOT = Path(__file__).resolve().parents[2]
NAMES = [spec.name for spec in load_catalog()]
WITH_MIG = [spec.name for spec in load_catalog() if spec.mig_profiles]
FIGURE_FIELDS = (
    "compute_capability",
    "sm_count",
    "fp32_lanes_per_sm",
    "base_clock_mhz",
    "boost_clock_mhz",
    "memory_mb",
    "bandwidth_gb_s",
    "l2_mb",
    "board_power_w",
)
DEVICE_FILE = """
name = "My GPU"
architecture = "ada"
compute_capability = [8, 9]
sm_count = 46
fp32_lanes_per_sm = 128
base_clock_mhz = 1920
boost_clock_mhz = 2475
memory_mb = 12282
bandwidth_gb_s = 504
l2_mb = 36
board_power_w = 200
peak_tflops = { fp32 = 29.1, fp16_tensor = 58.3 }
"""


@pytest.mark.parametrize("name", NAMES)
def test_fp32_peak_agrees_with_arithmetic(name: str) -> None:
    spec = find_device(name)

    assert spec.peak_tflops["fp32"] == pytest.approx(spec.fp32_arithmetic_tflops, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    spec = find_device(name)
    expected = {*FIGURE_FIELDS, *(f"peak_tflops.{key}" for key in spec.peak_tflops)}
    expected |= {name for name in ("usable_memory_mb", "context_mb") if getattr(spec, name) is not None}
    if spec.mig_profiles:
        expected.add("mig_profiles")

    assert set(spec.sources) == expected
    assert all(len(citation) > 20 for citation in spec.sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_ordered_as_hardware_is(name: str) -> None:
    """Dense rates: FP64 <= FP32, each narrower tensor type at least as fast as the wider one, FP8 twice FP16."""
    peaks = find_device(name).peak_tflops
    tensor = [peaks[key] for key in ("tf32_tensor", "fp16_tensor", "fp8_tensor") if key in peaks]

    assert peaks["fp64"] <= peaks["fp32"]
    assert tensor == sorted(tensor)
    assert peaks.get("bf16_tensor", peaks.get("fp16_tensor")) == peaks.get("fp16_tensor")
    if "fp8_tensor" in peaks:
        assert peaks["fp8_tensor"] == pytest.approx(2 * peaks["fp16_tensor"], rel=0.015)
    # The B300 gave its integer units up for FP4.
    if "fp16_tensor" in peaks and name != "B300 SXM6 AC":
        # A figure with sparsity, or with FP16 accumulation on a GeForce card, would be out by two against INT8.
        assert peaks.get("int8_tensor", 2 * peaks["fp16_tensor"]) >= 1.99 * peaks["fp16_tensor"]


@pytest.mark.parametrize("name", NAMES)
def test_tensor_types_follow_compute_capability(name: str) -> None:
    spec = find_device(name)
    has = {key for key in spec.peak_tflops if key.endswith("_tensor")}

    expected: set[str] = set()
    # Turing's smaller chips have none.
    if spec.compute_capability >= (7, 0) and "GTX" not in name:
        expected |= {"fp16_tensor"}
        if spec.compute_capability >= (7, 5):
            expected |= {"int8_tensor"}
        if spec.compute_capability >= (8, 0):
            expected |= {"tf32_tensor", "bf16_tensor"}
        if spec.compute_capability >= (8, 9):
            expected |= {"fp8_tensor"}
    assert has == expected


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("L4", 242),  # 485 with sparsity
        ("L40S", 733),
        ("RTX 4090", 330.3),  # 660.6 with FP16 accumulation
        ("RTX 6000 Ada", 728.5),
        ("H100", 1978.9),
        ("H100 PCIe", 1513),  # 3026 with sparsity
        ("H200 NVL", 1670.5),
        ("B200", 4500),  # 72 PFLOP/s with sparsity for eight
        ("RTX 5090", 419),
        ("RTX PRO 6000", 1007.6),
    ],
)
def test_fp8_rates_are_those_of_the_data_sheets(name: str, tflops: float) -> None:
    assert find_device(name).peak_tflops["fp8_tensor"] == pytest.approx(tflops, rel=1e-4)


@pytest.mark.parametrize("name", ["A100", "RTX 3090", "A40", "T4", "V100", "GTX 1660"])
def test_cards_before_ada_have_no_fp8(name: str) -> None:
    assert "fp8_tensor" not in find_device(name).peak_tflops


@pytest.mark.parametrize(
    ("name", "sms", "memory_mb", "bandwidth_gb_s", "watts", "fp32"),
    [
        ("H100 NVL", 132, 95830, 3939, 400, 60.0),
        ("B300", 148, 275040, 7672, 1100, 75.0),
        ("GB200", 152, 189471, 8000, 1200, 80.0),
        ("P40", 30, 23040, 346, 250, 12.0),
        ("GTX 1070", 15, 8192, 256, 150, 6.46),
        ("GTX 1650", 14, 4096, 128, 75, 2.98),
        ("GTX 1660 Ti", 24, 6144, 288, 120, 5.44),
        ("Quadro RTX 8000", 72, 49152, 672, 260, 16.3),
        ("Quadro RTX 5000", 48, 16384, 448, 230, 11.2),
        ("RTX 3050", 20, 8192, 224, 130, 9.1),
        ("RTX A5500", 80, 24564, 768, 230, 34.1),
        ("RTX 2000 Ada", 22, 16380, 224, 70, 12.0),
        ("RTX 4090 D", 114, 24564, 1008, 425, 73.5),
        ("RTX 4060 Laptop GPU", 24, 8188, 256, 115, 14.6),
        ("RTX 5050", 20, 8151, 320, 130, 13.2),
        ("RTX 5060", 30, 8151, 448, 145, 19.2),
        ("RTX PRO 4500", 82, 32623, 896, 200, 52.7),
    ],
)
def test_figures_of_cards_are_those_of_the_data_sheets(
    name: str, sms: int, memory_mb: float, bandwidth_gb_s: float, watts: float, fp32: float
) -> None:
    spec = find_device(name)

    assert (spec.sm_count, spec.memory_mb, spec.board_power_w) == (sms, memory_mb, watts)
    assert spec.bandwidth_gb_s == pytest.approx(bandwidth_gb_s)
    assert spec.peak_tflops["fp32"] == pytest.approx(fp32, rel=0.01)


def test_bandwidths_are_what_their_notes_multiply_to() -> None:
    checked = set()
    for spec in load_catalog():
        note = re.match(r".*: ([0-9]+)-bit bus at ([0-9.]+) (MHz|Gbit/s)", spec.sources["bandwidth_gb_s"])
        if note is None:
            continue
        bits, rate = float(note[1]), float(note[2])
        gbit_s_of_a_pin = 2e-3 * rate if note[3] == "MHz" else rate
        assert spec.bandwidth_gb_s == pytest.approx(bits * gbit_s_of_a_pin / 8, rel=1e-3), spec.name
        checked.add(spec.name)
    assert {"H100 NVL", "H100 PCIe", "GH200 480GB", "GeForce GTX 1070"} <= checked


@pytest.mark.parametrize("name", ["GTX 1650", "GTX 1660", "GTX 1660 SUPER", "GTX 1660 Ti"])
def test_turing_without_tensor_cores_does_fp16_at_twice_the_rate(name: str) -> None:
    spec = find_device(name)

    assert spec.compute_capability == (7, 5)
    assert spec.peak_tflops["fp16"] == pytest.approx(2 * spec.peak_tflops["fp32"], rel=1e-3)
    assert not [key for key in spec.peak_tflops if key.endswith("_tensor")]


def test_issue_devices_are_all_there() -> None:
    for name in (
        "V100-PCIE-16GB", "V100-PCIE-32GB", "V100-SXM2-16GB", "V100-SXM2-32GB", "T4", "P4", "P100-PCIE-12GB",
        "P100-PCIE-16GB", "P100-SXM2-16GB", "A100-PCIE-40GB", "A100-SXM4-40GB", "A100-PCIE-80GB", "A100-SXM4-80GB",
        "A30", "A40", "A10", "L4", "L40S", "H100 PCIe", "H100 SXM", "H200", "H200 NVL", "B200", "RTX 3090", "RTX 4090",
        "RTX 5090", "Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000", "RTX PRO 6000 Max-Q", "RTX PRO 6000 Server",
    ):  # fmt: skip
        find_device(name)


def test_cards_that_people_own_are_all_there() -> None:
    for name in (
        "GTX 1080", "GTX 1080 Ti", "TITAN V", "TITAN RTX", "RTX 2060", "RTX 2060 SUPER", "RTX 2070", "RTX 2070 SUPER",
        "RTX 2080", "RTX 2080 SUPER", "RTX 2080 Ti", "RTX 3060", "RTX 3060 Ti", "RTX 3070", "RTX 3070 Ti", "RTX 3080",
        "RTX 3080 12GB", "RTX 3080 Ti", "RTX 3090 Ti", "RTX 3080 Ti Laptop GPU", "RTX A2000 12GB", "RTX A4000",
        "RTX A4500", "RTX A5000", "RTX A6000", "RTX 4060", "RTX 4060 Ti", "RTX 4060 Ti 16GB", "RTX 4070",
        "RTX 4070 SUPER", "RTX 4070 Ti", "RTX 4070 Ti SUPER", "RTX 4080", "RTX 4080 SUPER", "RTX 4090 Laptop GPU",
        "RTX 4000 Ada", "RTX 4500 Ada", "RTX 5000 Ada", "RTX 5060 Ti", "RTX 5060 Ti 16GB", "RTX 5070", "RTX 5070 Ti",
        "RTX 5080", "RTX 5090 Laptop GPU", "A10G", "A16", "A2", "A800", "L40", "H800", "H20", "GH200", "H100 NVL",
        "B300", "GB200", "RTX 5060", "RTX 5050", "RTX 4090 D", "RTX 3050", "Quadro RTX 8000", "Quadro RTX 5000", "P40",
        "GTX 1060 6GB", "GTX 1070", "GTX 1070 Ti", "GTX 1650", "GTX 1660", "GTX 1660 Ti", "GTX 1660 SUPER", "RTX A5500",
        "RTX 2000 Ada", "RTX PRO 4000", "RTX PRO 4500", "RTX PRO 5000", "L20", "RTX 3060 Laptop GPU",
        "RTX 3070 Laptop GPU", "RTX 3080 Laptop GPU", "RTX 4050 Laptop GPU", "RTX 4060 Laptop GPU",
        "RTX 4070 Laptop GPU", "RTX 4080 Laptop GPU",
    ):  # fmt: skip
        find_device(name)


# FLOP per SM and clock, by architecture: half of the FP16 rate of the professional cards, the INT8 rate whole.
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("GeForce")])
def test_geforce_tensor_rates_are_those_of_fp32_accumulation(name: str) -> None:
    spec = find_device(name)
    per_clock = spec.sm_count * spec.boost_clock_mhz / 1e6

    for key, flop in (
        ("tf32_tensor", 256), ("fp16_tensor", 512), ("bf16_tensor", 512), ("fp8_tensor", 1024), ("int8_tensor", 2048),
    ):  # fmt: skip
        if key in spec.peak_tflops:
            assert spec.peak_tflops[key] == pytest.approx(flop * per_clock, rel=0.01), key


def test_architectures_are_in_order() -> None:
    order = [ARCHITECTURES.index(spec.architecture) for spec in load_catalog()]

    assert order == sorted(order)


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_cuda_offers_is_most_of_what_nvml_counts(name: str) -> None:
    spec = find_device(name)

    assert 0.93 * spec.memory_mb <= spec.capacity_mb <= spec.memory_mb


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("RTX 3080", "RTX 3080 12GB"),
        ("RTX 4060 Ti", "RTX 4060 Ti 16GB"),
        ("RTX 5060 Ti", "RTX 5060 Ti 16GB"),
        ("RTX 3080 Laptop GPU", "RTX 3080 Laptop GPU 16GB"),
    ],
)
def test_a_name_that_two_sizes_share_means_the_smaller(smaller: str, larger: str) -> None:
    assert find_device(smaller).memory_mb < find_device(larger).memory_mb


@pytest.mark.parametrize(
    ("written", "nearest"), [("RTX 4000", "RTX 4000 Ada Generation"), ("RTX 5000", "RTX 5000 Ada Generation")]
)
def test_a_name_of_several_generations_is_refused(written: str, nearest: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_device(written)

    assert caught.value.code == "device.unknown"
    assert nearest in str(caught.value)


def test_names_and_aliases_mean_one_device_each() -> None:
    for spec in load_catalog():
        for name in (spec.name, *spec.aliases):
            assert find_device(name) is spec, name


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("A100", "A100-SXM4-40GB"),
        ("a100", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("a100_sxm4_40gb", "A100-SXM4-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("a100 pcie", "A100-PCIE-40GB"),
        ("a100 80gb", "A100-SXM4-80GB"),
        ("A100-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-80GB", "A100 80GB PCIe"),
        ("rtx 4090", "GeForce RTX 4090"),
        ("RTX4090", "GeForce RTX 4090"),
        ("GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("nvidia-geforce-rtx-5090", "GeForce RTX 5090"),
        ("h100", "H100 80GB HBM3"),
        ("H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("h200 nvl", "H200 NVL"),
        ("v100", "Tesla V100-SXM2-16GB"),
        ("Tesla V100-PCIE-32GB", "Tesla V100-PCIE-32GB"),
        ("Tesla T4", "Tesla T4"),
        (" t4 ", "Tesla T4"),
        ("Tesla P100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("rtx 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("3080", "GeForce RTX 3080"),
        ("rtx 3080 10gb", "GeForce RTX 3080"),
        ("3080 12GB", "GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("gtx1080ti", "GeForce GTX 1080 Ti"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("4070 ti super", "GeForce RTX 4070 Ti SUPER"),
        ("4060ti 16gb", "GeForce RTX 4060 Ti 16GB"),
        ("rtx 4090 laptop", "GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 Laptop GPU"),
        ("A6000", "RTX A6000"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("rtx 5000 ada", "RTX 5000 Ada Generation"),
        ("a10g", "A10G"),
        ("NVIDIA A10", "A10"),
        ("a800", "A800-SXM4-80GB"),
        ("gh200", "GH200 480GB"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM6 AC"),
        ("b300", "B300 SXM6 AC"),
        ("NVIDIA GB200", "GB200"),
        ("gtx 1660 ti", "GeForce GTX 1660 Ti"),
        ("4090D", "GeForce RTX 4090 D"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "GeForce RTX 4060 Laptop GPU"),
        ("rtx pro 5000", "RTX PRO 5000 Blackwell"),
        ("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada Generation"),
        ("NVIDIA GH200 120GB", "GH200 480GB"),
        ("rtx pro 6000", "RTX PRO 6000 Blackwell Workstation Edition"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        ("1g.5gb@A100-SXM4-40GB", "1g.5gb@A100-SXM4-40GB"),
        ("1G.5GB @ a100", "1g.5gb@A100-SXM4-40GB"),
        ("MIG 3g.20gb@a100", "3g.20gb@A100-SXM4-40GB"),
        ("NVIDIA H200 MIG 3g.71gb", "3g.71gb@H200"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "1g.10gb@A100-SXM4-80GB"),
    ],
)
def test_find_device_forgives(written: str, means: str) -> None:
    assert find_device(written).name == means


@pytest.mark.parametrize(("name", "says"), [("1g.5gb", "a slice of no card"), ("1g.5gb@", "device is empty")])
def test_a_slice_without_its_card_is_told(name: str, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says) as caught:
        find_device(name)
    assert caught.value.code == "device.unknown"


def test_unknown_name_lists_the_nearest_and_the_cure() -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_device("H100 SXM4 80GB")

    message = str(caught.value)
    assert caught.value.code == "device.unknown"
    assert caught.value.exit_status == 4
    assert "H100 80GB HBM3" in message
    assert "dippm devices" in message
    assert "--device-file" in message


@pytest.mark.parametrize("name", ["", " ", "nvidia", "4g.20gb", "@", "1g.5gb@", "x" * 100_000, "@" * 10_000, "Ⅷ€"])
def test_odd_names_are_unknown(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_device(name)

    assert len(str(caught.value)) < 1000


@given(st.text(max_size=60) | st.sampled_from(NAMES).flatmap(lambda name: st.permutations(name).map("".join)))
def test_any_text_is_a_device_or_unknown(text: str) -> None:
    try:
        found = find_device(text).name
    except UnsupportedError as error:
        found = error.code

    assert found in {"device.unknown", "device.mig_profile", *NAMES}


@pytest.mark.parametrize(
    ("name", "profiles"),
    [
        ("A100-PCIE-40GB", "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100-SXM4-40GB", "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100-SXM4-80GB", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("A30", "1g.6gb 2g.12gb 4g.24gb"),
        ("H100 PCIe", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100 NVL", "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
        ("H200", "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
    ],
)
def test_mig_profiles_are_complete(name: str, profiles: str) -> None:
    assert [profile.name for profile in find_device(name).mig_profiles] == profiles.split()


@pytest.mark.parametrize("name", WITH_MIG)
def test_mig_profiles_are_consistent(name: str) -> None:
    spec = find_device(name)
    slices = max(profile.memory_slices for profile in spec.mig_profiles)

    assert [p.memory_mb for p in spec.mig_profiles] == sorted(p.memory_mb for p in spec.mig_profiles)
    for profile in spec.mig_profiles:
        compute, nominal_gb = profile.name.removesuffix("gb").split("g.")
        assert profile.compute_slices == int(compute)
        # Names round the share of the card up; what is offered is a little less than the name, never more.
        assert 0.85 * int(nominal_gb) * 1024 <= profile.memory_mb <= int(nominal_gb) * 1024
        assert profile.max_instances * profile.memory_slices <= slices
        assert profile.max_instances * profile.sm_count <= spec.sm_count
        for start in profile.placements:
            assert start + profile.memory_slices <= slices


def test_slice_is_a_device() -> None:
    card = find_device("A100-SXM4-40GB")
    part = find_device("3g.20gb@A100-SXM4-40GB")

    assert (part.sm_count, part.memory_mb, part.capacity_mb) == (42, 19968, 19968)
    assert part.bandwidth_gb_s == pytest.approx(card.bandwidth_gb_s / 2)
    assert part.l2_mb == pytest.approx(card.l2_mb / 2)
    assert part.peak_tflops["fp16_tensor"] == pytest.approx(312 * 42 / 108)
    assert part.board_power_w == pytest.approx(400 * 42 / 108)
    assert (part.parent, part.is_mig_slice, part.mig_profiles, part.aliases) == (card.name, True, (), ())
    assert "4 of 8 memory slices" in part.sources["bandwidth_gb_s"]


@pytest.mark.parametrize(
    "name", ["1g.10gb@A100-SXM4-40GB", "1g.20gb@A100-SXM4-80GB", "1g.20gb@H100", "1g.24gb@H100 NVL", "1g.35gb@H200"]
)
def test_1g_of_twice_the_memory_has_the_l2_of_one_memory_slice(name: str) -> None:
    part, card = find_device(name), find_device(name.partition("@")[2])

    assert part.l2_mb == pytest.approx(card.l2_mb / 8)
    assert part.bandwidth_gb_s == pytest.approx(card.bandwidth_gb_s / 4)
    assert "1 of 8 memory slices" in part.sources["l2_mb"]
    assert "User Guide" in part.sources["l2_mb"]


@pytest.mark.parametrize("name", WITH_MIG)
def test_every_slice_makes_a_valid_device(name: str) -> None:
    card = find_device(name)
    for profile in card.mig_profiles:
        part = slice_device(card, profile.name)

        assert part.peak_tflops["fp32"] == pytest.approx(part.fp32_arithmetic_tflops, rel=0.03)
        assert find_device(part.name) == part


@pytest.mark.parametrize("name", ["9g.99gb@A100", "1g.5gb@H100", "1g.5gb+me@A100"])
def test_unknown_slice_lists_what_the_card_has(name: str) -> None:
    with pytest.raises(UnsupportedError, match="has no MIG profile") as caught:
        find_device(name)

    assert caught.value.code == "device.mig_profile"


def test_a_slice_of_a_card_without_slices_is_told_so() -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_device("1g.5gb@T4")
    assert caught.value.code == "device.mig_profile"
    assert str(caught.value) == (
        "Device 'Tesla T4' has no MIG slices that dippm knows of. Got '1g.5gb' instead. Name the whole card; "
        "dippm devices says which cards have slices."
    )


def test_catalogue_is_read_once() -> None:
    assert load_catalog() is load_catalog()


def test_catalogue_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dippm.devices import find_device; find_device('A100')\n"
        "print([name for name in ('numpy', 'torch', 'onnx', 'difflib', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_documentation_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_device_table.py"))
    page = script["PAGE"].read_text(encoding="utf-8")

    assert page == script["replace_written_part"](page, script["format_tables"](load_catalog())), (
        "run scripts/write_device_table.py"
    )


def test_device_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(
        DEVICE_FILE
        + 'usable_memory_mb = 12000\naliases = ["mine"]\nsources = { sm_count = "the box" }\n'
        + '[[mig_profiles]]\nname = "1g.6gb"\ncompute_slices = 1\nmemory_slices = 1\nsm_count = 23\nmemory_mb = 6000\n'
        + "max_instances = 2\nplacements = [0, 1]\n"
        + '[[mig_profiles]]\nname = "2g.12gb"\ncompute_slices = 2\nmemory_slices = 2\nsm_count = 46\n'
        + "memory_mb = 12000\nmax_instances = 1\nl2_slices = 1\n",
        encoding="utf-8",
    )

    spec = load_device_file(path)

    assert (spec.name, spec.compute_capability, spec.sm_count, spec.capacity_mb) == ("My GPU", (8, 9), 46, 12000)
    assert spec.peak_tflops == {"fp32": 29.1, "fp16_tensor": 58.3}
    assert slice_device(spec, "1g.6gb").name == "1g.6gb@My GPU"
    assert slice_device(spec, "2g.12gb").l2_mb == spec.l2_mb / 2
    assert slice_device(spec, "2g.12gb").bandwidth_gb_s == spec.bandwidth_gb_s
    assert spec.sources == {"sm_count": "the box"}


def test_a_device_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(DEVICE_FILE, encoding="utf-8-sig")
    assert load_device_file(path).name == "My GPU"


def test_documented_device_file_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    path = tmp_path / "gpu.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")

    assert load_device_file(str(path)).name == "My GPU"


@pytest.mark.parametrize("key", DEVICE_FILE_REQUIRED)
def test_device_file_lacking_a_key_names_it(tmp_path: Path, key: str) -> None:
    path = tmp_path / "gpu.toml"
    lines = [line for line in DEVICE_FILE.splitlines() if not line.startswith(f"{key} ")]
    path.write_text("\n".join(lines), encoding="utf-8")

    with pytest.raises(UsageError, match=f"lacks: {key}\\.") as caught:
        load_device_file(path)
    assert caught.value.code == "device_file.key"


def test_a_misspelt_key_stands_beside_the_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(DEVICE_FILE.replace("sm_count ", "sm_counts ", 1), encoding="utf-8")

    with pytest.raises(UsageError, match=r"lacks: sm_count and has unknown keys: sm_counts\."):
        load_device_file(path)


@pytest.mark.parametrize(
    ("addition", "code", "said"),
    [
        ("sm_counts = 4", "device_file.key", "sm_counts"),
        ("aliases = 'mine'", "device_file.value", "a list"),
        ("aliases = [1]", "device_file.value", "text in quotes"),
        ("sources = 3", "device_file.value", "a table"),
        ("sources = { sm_count = 3 }", "device_file.value", "text in quotes"),
        ("mig_profiles = [3]", "device_file.value", "a table"),
        ("mig_profiles = [{ name = '1g' }]", "device_file.key", "lacks: compute_slices"),
        ("sm_count = 46", "device_file.syntax", "TOML"),
        ("usable_memory_mb = 99999", "device.value", "usable_memory_mb"),
        ("usable_memory_mb = 2020-01-01", "device.value", "a number"),
        ("= =", "device_file.syntax", "TOML"),
    ],
)
def test_device_file_with_a_mistake_is_refused(tmp_path: Path, addition: str, code: str, said: str) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(f"{DEVICE_FILE}\n{addition}\n", encoding="utf-8")

    with pytest.raises(UsageError, match=said) as caught:
        load_device_file(path)
    assert (caught.value.code, caught.value.exit_status) == (code, 2)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("boost_clock_mhz = 2475", "boost_clock_mhz = 2.475", "device.value"),
        ("fp32 = 29.1", "fp32 = 29100", "device.value"),
        ("sm_count = 46", 'sm_count = "46"', "device.value"),
        ("[8, 9]", "8.9", "device_file.value"),
        ("[8, 9]", "[8, 9, 0]", "device.value"),
        ('"My GPU"', "7", "device_file.value"),
        ('"My GPU"', '"My, GPU"', "device_file.value"),
        ('"My GPU"', '"1g.5gb@A100"', "device_file.value"),
        ('"ada"', "[]", "device_file.value"),
        ("{ fp32 = 29.1, fp16_tensor = 58.3 }", "29.1", "device_file.value"),
        ("memory_mb = 12282", "memory_mb = nan", "device.value"),
    ],
)
def test_device_file_with_a_bad_value_is_refused(tmp_path: Path, old: str, new: str, code: str) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(DEVICE_FILE.replace(old, new), encoding="utf-8")

    with pytest.raises(UsageError) as caught:
        load_device_file(path)
    assert caught.value.code == code


def test_unreadable_device_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "gpu.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * 1_000_001)

    for path in (tmp_path / "missing.toml", tmp_path, binary, huge):
        with pytest.raises(UsageError) as caught:
            load_device_file(path)
        assert caught.value.code == "device_file.unreadable"


def test_names_joined_by_commas_are_told_to_be_a_list() -> None:
    with pytest.raises(UnsupportedError, match="a list of names"):
        find_device("A100,T4")
    with pytest.raises(UnsupportedError) as caught:
        find_device("T44")
    assert "a list of names" not in str(caught.value)


def test_devices_of_ones_own_go_by_their_names() -> None:
    own = replace(find_device("A30"), name="Card @ home", aliases=("spare",))
    assert find_device("card @ HOME ", own=[own]) is own
    assert find_device("Spare", own=[own]) is own
    assert find_device("1g.6gb@spare", own=[own]).parent == "Card @ home"
    assert find_device("T4", own=[own]).name == "Tesla T4"
    # A name of the catalogue may be taken for one's own card.
    assert find_device("T4", own=[replace(own, name="T4")]).sm_count == own.sm_count
