"""The power of a board."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.energy import PowerModel, chip_process, is_always_limited, power_w
from dippm.devices import find_device, load_catalog

MODEL = PowerModel(idle=0.2, running_pj=20.0, flop_pj=5.0, tensor_pj=3.0, byte_pj=30.0)
A100 = find_device("A100-SXM4-40GB")


def draw(
    name: str,
    *,
    busy: float = 1.0,
    plain: float = 0.0,
    tensor: float = 0.0,
    moved: float = 0.0,
    model: PowerModel = MODEL,
) -> float:
    power = power_w(
        model,
        find_device(name),
        busy_share=np.array([busy]),
        plain_flops_per_s=np.array([plain]),
        tensor_flops_per_s=np.array([tensor]),
        bytes_per_s=np.array([moved]),
    )
    return float(power[0])


def test_a_waiting_board_draws_its_idle_share() -> None:
    assert draw("A100-SXM4-40GB", busy=0.0, plain=1e15, moved=1e15) == pytest.approx(0.2 * 400)


def test_every_part_by_hand() -> None:
    # 108 multiprocessors of 64 lanes at 1,410 MHz, in 7 nm.
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert draw("A100-SXM4-40GB", moved=1e12, busy=0.25) == pytest.approx(80 + 0.25 * (running + 30.0))
    assert draw("A100-SXM4-40GB", plain=1e13) == pytest.approx(80 + running + 0.4 * 5.0 * 10)
    assert draw("A100-SXM4-40GB", tensor=1e14) == pytest.approx(80 + running + 0.4 * 3.0 * 100)
    assert draw("A100-SXM4-40GB", moved=1e12) == pytest.approx(80 + running + 30.0)
    # Faster than the memory is the cache.
    assert draw("A100-SXM4-40GB", moved=1e13) == pytest.approx(80 + running + 30.0 * 1.555)


def test_lanes_without_work_hold_their_clocks() -> None:
    """All have work where a kernel reaches 0.3 of the peaks of FP32, tensor cores and memory, added up."""
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert draw("A100-SXM4-40GB") == 80
    # 0.1 of 19.5 TFLOP/s, and 0.05 of 312, are half of that.
    expected = 80 + 0.5 * running + 0.4 * (5.0 * 1.95 + 3.0 * 15.6)
    assert draw("A100-SXM4-40GB", plain=1.95e12, tensor=15.6e12) == pytest.approx(expected)
    # A T4's limit holds no clocks back where most of its lanes have no work.
    assert draw("T4", moved=1e10) < 70


def test_processes() -> None:
    """The energy of logic alone falls from process to process, that of a byte does not."""
    energies = []
    for name in ("P100-PCIE-16GB", "V100-SXM2-16GB", "RTX 3090", "A100", "H100"):
        device = find_device(name)
        idle = 0.2 * device.board_power_w
        moved = 1e9 * device.bandwidth_gb_s
        running = draw(name, moved=moved) - idle - 30e-12 * moved
        cycles = device.sm_count * device.fp32_lanes_per_sm * device.boost_clock_mhz * 1e6
        energies.append(running / (20e-12 * cycles))
        assert draw(name, moved=0.9 * moved) - idle - running == pytest.approx(27e-12 * moved)
    assert energies == pytest.approx([1.0, 0.9, 0.5, 0.4, 0.28])


def test_boards_of_one_process() -> None:
    names = {
        "16 nm": ("P100-PCIE-16GB", "GTX 1080 Ti"),
        "12 nm": ("V100-PCIE-32GB", "Quadro RTX 6000"),
        "7 nm": ("A100-SXM4-40GB", "A100-PCIE-40GB", "1g.5gb@A100-SXM4-40GB"),
        "8 nm": ("A40", "RTX 3090"),
        "4 nm": ("RTX 4090", "H100", "B200"),
    }
    for name, boards in names.items():
        assert {chip_process(find_device(board)).name for board in boards} == {name}


def test_a_low_limit_holds_a_chip_back() -> None:
    work = {"tensor": 1e14, "moved": 2e11}
    assert draw("T4", **work) == 70
    assert draw("RTX 4090", **work) < 450


@pytest.mark.parametrize("name", [device.name for device in load_catalog()])
def test_a_board_is_always_limited_where_any_kernel_draws_its_limit(name: str) -> None:
    device = find_device(name)
    cycles_alone = replace(MODEL, byte_pj=0.0)
    drawn_w = draw(name, moved=1e9 * device.bandwidth_gb_s, model=cycles_alone)
    assert is_always_limited(MODEL, device) is (drawn_w == device.board_power_w)


@pytest.mark.parametrize("name", [device.name for device in load_catalog()])
def test_every_card_lies_between_idle_and_its_limit(name: str) -> None:
    limit = find_device(name).board_power_w
    assert 0.2 * limit < draw(name, moved=1e11) <= limit


@given(st.floats(0, 1), st.floats(0, 1e16), st.floats(0, 1e16), st.floats(0, 1e14))
def test_power_stays_between_idle_and_the_limit(busy: float, plain: float, tensor: float, moved: float) -> None:
    power = draw("A100-SXM4-40GB", busy=busy, plain=plain, tensor=tensor, moved=moved)
    assert 0.2 * A100.board_power_w - 1e-9 <= power <= A100.board_power_w + 1e-9
