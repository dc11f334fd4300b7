from __future__ import annotations

import pytest

from dippm.errors import DippmError
from dippm.measuring.cpu_meter import CpuMeter
from dippm.measuring.meter import open_meter


def test_a_processor_is_its_meter() -> None:
    pytest.importorskip("torch")
    meter = open_meter("cpu")
    assert isinstance(meter, CpuMeter)
    result, time = meter.time_call(lambda: sum(range(1000)))
    assert result == 499500
    assert time.wall_s > 0


@pytest.mark.parametrize("device", ["cuda:99", "cuda:x", "tpu", ""])
def test_what_this_machine_does_not_have(device: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(DippmError) as caught:
        open_meter(device)
    assert caught.value.code == "device.unavailable"
