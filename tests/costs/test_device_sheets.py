import pytest

from dippm.costs.device_sheets import DeviceSheets, formats_on_tensor_cores
from dippm.costs.precision import Arithmetic
from dippm.devices import DeviceSpec, find_device

_FORMATS = (Arithmetic.FP32, Arithmetic.TF32, Arithmetic.FP16)


def fp16_peak(device: DeviceSpec, *, tensor_feed: float) -> float:
    on_tensor = formats_on_tensor_cores(device, _FORMATS)
    sheets = DeviceSheets.of((device,), on_tensor, tensor_feed)
    return float(sheets.peaks[0, tuple(Arithmetic).index(Arithmetic.FP16)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A100", {Arithmetic.TF32, Arithmetic.FP16}), ("RTX 3090", {Arithmetic.FP16}), ("P100", set())],
)
def test_formats_are_on_tensor_cores_where_these_are_faster(name: str, expected: set[Arithmetic]) -> None:
    assert formats_on_tensor_cores(find_device(name), _FORMATS) == expected


@pytest.mark.parametrize(("name", "has_flash"), [("T4", False), ("V100", False), ("A100", True), ("RTX 4090", True)])
def test_flash_attention_begins_with_ampere(name: str, has_flash: bool) -> None:
    assert DeviceSheets.of((find_device(name),), frozenset(), 0.0).has_flash.item() is has_flash


def test_a_board_with_power_to_spare_sustains_a_share_of_its_peak_and_feeding_costs_full_rates() -> None:
    device = find_device("A100")
    sustained = 0.85 * device.peak_tflops["fp16_tensor"] * 1e12
    assert fp16_peak(device, tensor_feed=0.0) == pytest.approx(sustained)
    # Its tensor cores run at the full rate of Ampere: 1 + 2 over 1 + 2 / 2.
    assert fp16_peak(device, tensor_feed=2.0) == pytest.approx(sustained / 1.5, rel=0.01)
    half_rate = find_device("RTX 3090")
    fed, unfed = (fp16_peak(half_rate, tensor_feed=feed) for feed in (2.0, 0.0))
    assert fed == pytest.approx(unfed, rel=0.01)
