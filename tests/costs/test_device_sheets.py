from dataclasses import replace

import pytest

from dippm.costs.device_sheets import DeviceSheets, formats_on_tensor_cores
from dippm.costs.precision import Arithmetic
from dippm.costs.tensor_rates import tensor_tflops
from dippm.devices import DeviceSpec, find_device, load_catalog

_FORMATS = (Arithmetic.FP32, Arithmetic.TF32, Arithmetic.FP16)
_ON_TENSOR = (*_FORMATS, Arithmetic.BF16, Arithmetic.INT8, Arithmetic.FP8)


def fp16_peak(device: DeviceSpec, *, tensor_feed: float, feeds_slowly: bool = False) -> float:
    return peak_of(Arithmetic.FP16, device, tensor_feed=tensor_feed, feeds_slowly=feeds_slowly)


def with_power(name: str) -> DeviceSpec:
    """A card that no power limit holds back."""
    return replace(find_device(name), board_power_w=1e4)


def peak_of(arithmetic: Arithmetic, device: DeviceSpec, *, tensor_feed: float, feeds_slowly: bool = False) -> float:
    on_tensor = formats_on_tensor_cores(device, _ON_TENSOR)
    sheets = DeviceSheets.of((device,), on_tensor, (tensor_feed,), feeds_slowly=feeds_slowly)
    return float(sheets.peaks[0, tuple(Arithmetic).index(arithmetic)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100", {Arithmetic.TF32, Arithmetic.FP16}),
        ("RTX 3090", {Arithmetic.TF32, Arithmetic.FP16}),
        ("T4", {Arithmetic.FP16}),
        ("P100", set()),
    ],
)
def test_formats_are_on_tensor_cores_where_these_are_as_fast(name: str, expected: set[Arithmetic]) -> None:
    assert formats_on_tensor_cores(find_device(name), _FORMATS) == expected


@pytest.mark.parametrize(("name", "has_flash"), [("T4", False), ("V100", False), ("A100", True), ("RTX 4090", True)])
def test_flash_attention_begins_with_ampere(name: str, has_flash: bool) -> None:
    assert DeviceSheets.of((find_device(name),), frozenset(), (0.0,)).has_flash.item() is has_flash


@pytest.mark.parametrize(
    ("name", "tflops"), [("V100", 0.0), ("T4", 0.0), ("A100", 24.0), ("RTX 3090", 9.0), ("H100", 0.0)]
)
def test_attention_of_32_bits_is_below_a_third_of_the_tf32_rate(name: str, tflops: float) -> None:
    device = find_device(name)
    rate = DeviceSheets.of((device,), frozenset(), (0.0,)).split_attention.item() / 1e12
    assert rate == pytest.approx(tflops, rel=0.03)
    assert rate < device.peak_tflops.get("tf32_tensor", 1.0) / 3.0


def test_a_board_with_power_to_spare_sustains_a_share_of_its_peak_and_feeding_costs_full_rates() -> None:
    device = with_power("A100")
    sustained = 0.85 * device.peak_tflops["fp16_tensor"] * 1e12
    assert fp16_peak(device, tensor_feed=0.0) == pytest.approx(sustained)
    # The full rate of Ampere's tensor cores is 16 operations for each byte of shared memory: 1 + 4 over 1 + 4 / 2.
    assert fp16_peak(device, tensor_feed=2.0) == pytest.approx(sustained * 3.0 / 5.0, rel=0.01)
    half_rate = with_power("RTX 3090")
    fed, unfed = (fp16_peak(half_rate, tensor_feed=feed) for feed in (2.0, 0.0))
    assert fed == pytest.approx(unfed, rel=0.01)


@pytest.mark.parametrize(
    ("name", "feed", "share"),
    # Operations for each byte of shared memory at the full rate, over eight: 1024 / 128, 1024 / 64, 4096 / 128; and the
    # share of that rate at the boost clock, 989 of 1,070 TFLOP/s.
    [("V100", 1.0, 1.0), ("L40S", 1.0, 1.0), ("T4", 2.0, 1.0), ("H100 SXM", 4.0, 0.924)],
)
def test_feeding_costs_more_the_more_operations_there_are_for_a_byte_of_shared_memory(
    name: str, feed: float, share: float
) -> None:
    device = with_power(name)
    slower = fp16_peak(device, tensor_feed=0.0) / fp16_peak(device, tensor_feed=1.0)
    assert slower == pytest.approx((1.0 + feed * share) / (1.0 + feed / 2.0), rel=0.02)


def better(device: DeviceSpec, other: DeviceSpec) -> bool:
    """Whether a card is as good as another in every figure."""
    figures = ("bandwidth_gb_s", "sm_count", "boost_clock_mhz", "l2_mb", "board_power_w", "compute_capability")
    return all(getattr(device, name) >= getattr(other, name) for name in figures) and all(
        device.peak_tflops.get(name, 0.0) >= peak for name, peak in other.peak_tflops.items()
    )


_CARDS = [device for device in load_catalog() if "fp16_tensor" in device.peak_tflops]


@pytest.mark.parametrize("feeds_slowly", [False, True])
@pytest.mark.parametrize(
    "arithmetic", [Arithmetic.FP16, Arithmetic.BF16, Arithmetic.TF32, Arithmetic.INT8, Arithmetic.FP8]
)
def test_no_card_passes_its_peak_or_a_better_one(arithmetic: Arithmetic, feeds_slowly: bool) -> None:
    on_tensor = {device.name: formats_on_tensor_cores(device, [arithmetic]) for device in _CARDS}
    cards = [device for device in _CARDS if on_tensor[device.name]]
    reached = {device.name: peak_of(arithmetic, device, tensor_feed=1.1, feeds_slowly=feeds_slowly) for device in cards}
    for device in cards:
        peak = tensor_tflops(device, arithmetic) * 1e12
        assert reached[device.name] <= 0.85 * peak * (1.0 + 1e-9), device.name
        fast = peak_of(arithmetic, device, tensor_feed=1.1, feeds_slowly=False)
        assert reached[device.name] <= fast * (1.0 + 1e-9), device.name
        for other in cards:
            if better(device, other):
                assert reached[device.name] >= reached[other.name] * (1.0 - 1e-9), (device.name, other.name)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("A100", 1.0),  # no unit for it
        ("RTX 4090", 2.0),
        ("H100 SXM", 2.0),
        ("H100 PCIe", 2.0),  # power counts for each operation, and FP8 takes half of it
    ],
)
def test_fp8_beside_bf16(name: str, ratio: float) -> None:
    device = find_device(name)
    rates = [peak_of(arithmetic, device, tensor_feed=0.0) for arithmetic in (Arithmetic.FP8, Arithmetic.BF16)]
    assert rates[0] / rates[1] == pytest.approx(ratio, rel=0.01)
    assert formats_on_tensor_cores(device, [Arithmetic.FP8])
    fed = [peak_of(arithmetic, device, tensor_feed=1.1) for arithmetic in (Arithmetic.FP8, Arithmetic.BF16)]
    assert fed[1] <= fed[0] * (1.0 + 1e-9) <= rates[0] * (1.0 + 2e-9)


def test_libraries_that_know_a_card_or_a_format_do_not_feed_it_slowly() -> None:
    for arithmetic, name in ((Arithmetic.FP16, "H100 SXM"), (Arithmetic.INT8, "A100"), (Arithmetic.TF32, "A100")):
        device = find_device(name)
        slow, fast = (peak_of(arithmetic, device, tensor_feed=1.1, feeds_slowly=slowly) for slowly in (True, False))
        assert slow == fast, name


def test_with_libraries_that_feed_slowly_the_full_rate_is_no_faster_than_half_of_it() -> None:
    full_rate, half_rate = with_power("A100"), with_power("RTX 4090")
    unfed = [fp16_peak(device, tensor_feed=0.0) for device in (full_rate, half_rate)]
    slow = [fp16_peak(device, tensor_feed=1.0, feeds_slowly=True) for device in (full_rate, half_rate)]
    assert slow == pytest.approx([unfed[0] / 2.0, unfed[1]], rel=0.01)
