import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.energy import PowerModel, power_w
from dippm.devices import find_device

MODEL = PowerModel(idle=0.2, base=0.5, compute=0.3, memory=0.4)
A100 = find_device("A100-SXM4-40GB")


def draw(busy: float, flops: float, moved: float) -> float:
    return float(
        power_w(MODEL, A100, busy_share=np.array([busy]), flops_per_s=np.array([flops]), bytes_per_s=np.array([moved]))[
            0
        ]
    )


def test_a_waiting_board_draws_its_idle_share() -> None:
    assert draw(0.0, 1e15, 1e15) == pytest.approx(0.2 * A100.board_power_w)


def test_a_kernel_at_half_of_both_peaks() -> None:
    share = 0.5 + 0.3 * 0.5 + 0.4 * 0.5
    flops, moved = 0.5e12 * A100.peak_tflops["fp32"], 0.5e9 * A100.bandwidth_gb_s
    assert draw(1.0, flops, moved) == pytest.approx(share * A100.board_power_w)


@given(st.floats(0, 1), st.floats(0, 1e16), st.floats(0, 1e14))
def test_power_stays_between_idle_and_the_limit(busy: float, flops: float, moved: float) -> None:
    assert 0.2 * A100.board_power_w <= draw(busy, flops, moved) <= A100.board_power_w + 1e-9
