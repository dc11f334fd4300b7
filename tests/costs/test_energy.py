"""The power of a board."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.energy import (
    BOARD_USE,
    KernelWork,
    PowerModel,
    chip_process,
    describe_board_use,
    is_always_limited,
    power_w,
)
from dippm.costs.power_correction import PowerCorrection
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
    results: float = 0.0,
    model: PowerModel = MODEL,
) -> float:
    """Power of a call in which one long kernel runs for a part of the time, at these rates."""
    power = power_w(
        model,
        find_device(name),
        call_s=np.array([1e3]),
        kernel_s=np.array([[busy * 1e3]]),
        work=KernelWork(
            runs=np.ones(1),
            plain_flops=np.array([[plain * busy * 1e3]]),
            tensor_flops=np.array([[tensor * busy * 1e3]]),
            traffic_bytes=np.array([[moved * busy * 1e3]]),
            results=np.array([[results]]),
        ),
    )
    return float(power[0])


def test_a_waiting_board_draws_its_idle_share() -> None:
    assert draw("A100-SXM4-40GB", busy=0.0, plain=1e15, moved=1e15) == pytest.approx(0.2 * 400)


def test_every_part_by_hand() -> None:
    # 108 multiprocessors of 64 lanes at 1,410 MHz, in 7 nm.
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert draw("A100-SXM4-40GB", moved=1e12, busy=0.25) == pytest.approx(80 + 0.25 * (running + 30.0))
    assert draw("A100-SXM4-40GB", plain=1.5e13) == pytest.approx(80 + running + 0.4 * 5.0 * 15)
    assert draw("A100-SXM4-40GB", tensor=2e14) == pytest.approx(80 + running + 0.4 * 3.0 * 200)
    assert draw("A100-SXM4-40GB", moved=1e12) == pytest.approx(80 + running + 30.0)
    # Faster than the memory is the cache.
    assert draw("A100-SXM4-40GB", moved=1e13) == pytest.approx(80 + running + 30.0 * 1.555)


def test_lanes_without_work_hold_their_clocks() -> None:
    """All have work where a kernel reaches 0.25 of the peaks of FP32, tensor cores and memory, added up."""
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert draw("A100-SXM4-40GB") == 80
    # 0.075 of 19.5 TFLOP/s, and 0.05 of 312, are half of that.
    expected = 80 + 0.5 * running + 0.4 * (5.0 * 1.4625 + 3.0 * 15.6)
    assert draw("A100-SXM4-40GB", plain=1.4625e12, tensor=15.6e12) == pytest.approx(expected)
    # A T4's limit holds no clocks back where most of its lanes have no work.
    assert draw("T4", moved=5e9) < 70


def test_lanes_under_blocks_of_a_convolution_have_work_however_slow_it_is() -> None:
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    # 27 blocks of 8,192 numbers lie on a fourth of the multiprocessors, 216 on all of them.
    assert draw("A100-SXM4-40GB", results=27 * 8192) == pytest.approx(80 + 0.25 * running)
    assert draw("A100-SXM4-40GB", results=216 * 8192) == pytest.approx(80 + running)
    # What reaches its peaks draws no more for its blocks.
    assert draw("A100-SXM4-40GB", results=27 * 8192, moved=1e12) == draw("A100-SXM4-40GB", moved=1e12)


@pytest.mark.parametrize(
    ("kernel_s", "runs", "filled_s"), [(1e-3, 1, 0.9955e-3), (3e-6, 300, 0.0), (10e-6, 100, 550e-6)]
)
def test_lanes_have_no_work_while_a_kernel_starts_and_ends(kernel_s: float, runs: int, filled_s: float) -> None:
    moved = 1.555e12 * kernel_s * runs
    power = power_w(
        replace(MODEL, byte_pj=0.0),
        A100,
        call_s=np.array([1e-3]),
        kernel_s=np.array([[kernel_s]]),
        work=KernelWork(
            runs=np.array([runs]),
            plain_flops=np.zeros((1, 1)),
            tensor_flops=np.zeros((1, 1)),
            traffic_bytes=np.array([[moved]]),
            results=np.zeros((1, 1)),
        ),
    )
    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert power[0] == pytest.approx(80 + running * filled_s / 1e-3)


def test_each_kernel_has_rates_of_its_own() -> None:
    """Half of the time at the peak and half without work is not all of it at half of the peak."""

    def of(*moved: float) -> float:
        work = np.array([moved]) * 1e12
        power = power_w(
            MODEL,
            A100,
            call_s=np.ones(1),
            kernel_s=np.full((1, len(moved)), 1.0 / len(moved)),
            work=KernelWork(
                runs=np.ones(len(moved)),
                plain_flops=0.0 * work,
                tensor_flops=0.0 * work,
                traffic_bytes=work,
                results=0.0 * work,
            ),
        )
        return float(power[0])

    running = 0.4 * 20.0 * 108 * 64 * 1.41e9 * 1e-12
    assert of(0.5, 0.0) == pytest.approx(80 + 0.5 * running + 15.0, rel=1e-4)
    assert of(0.25, 0.25) == pytest.approx(of(0.5), rel=1e-4)
    assert of(0.25, 0.25) > of(0.5, 0.0) + 0.49 * running


def test_an_architecture_has_coefficients_of_its_own() -> None:
    own = replace(MODEL, idle=0.1, running_pj=0.0, byte_pj=10.0)
    model = replace(MODEL, measured={"9.0": own})
    for name in ("H100", "H200"):
        assert draw(name, moved=1e12, model=model) == draw(name, moved=1e12, model=own) == pytest.approx(70 + 10)
    assert draw("A100", moved=1e12, model=model) == draw("A100", moved=1e12)
    assert PowerModel.from_json(asdict(model)) == model


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


def test_how_a_call_uses_its_board_by_hand() -> None:
    """A convolution on tensor cores, one beside them, a product, and a copy that the cache serves; a quarter idle."""
    peak, tensor, memory = 19.5e12, 312e12, 1.555e12
    (told,) = describe_board_use(
        A100,
        call_s=np.array([8.0]),
        kernel_s=np.array([[1.0, 1.0, 2.0, 1.0, 0.0]]),
        work=KernelWork(
            runs=np.array([1.0, 2.0, 1.0, 1.0, 5.0]),
            plain_flops=np.array([[0.0, 0.25 * peak, 0.0, 0.0, 0.0]]),
            tensor_flops=np.array([[0.1 * tensor, 0.0, 0.5 * tensor, 0.0, 0.0]]),
            traffic_bytes=np.array([[0.0, 0.0, 0.0, 3.0 * memory, 0.0]]),
            results=np.array([[1e9, 54 * 8192.0, 0.0, 0.0, 0.0]]),
        ),
    )
    expected = {
        # Blocks lie on all lanes for one convolution, on half of them for the other; half and all of the rates.
        "filled": 1.0 + 1.0 + 2.0 + 1.0,
        "plain": 0.25,
        "tensor": 0.6,
        "memory": 1.0,
        "cache": 2.0,
        "memory_elsewhere": 1.0,
        "convolution": 3.0,
        "convolution_filled": 2.0,
        "product": 2.0,
        "plain_convolution": 2.0,
    }
    assert told[:-1].tolist() == pytest.approx([value / 8.0 for value in expected.values()], abs=1e-5)
    assert told[-1] == pytest.approx(np.log(6.0 / 5.0))
    assert (*expected, "log_kernel_s") == BOARD_USE


def correction_of(error: float) -> PowerCorrection:
    """Of a board that is met amiss by so much, however it is used."""
    figures = np.array([[0.0] * len(BOARD_USE), [1.0] * len(BOARD_USE)])
    wide = replace(PowerCorrection.fit(BOARD_USE, figures, np.full(2, error)), scale=(1e3,) * len(BOARD_USE))
    return replace(wide, known=((0.0,) * len(BOARD_USE),), weight=(-error,))


def test_a_correction_stays_between_idle_and_limit() -> None:
    plain = draw("A100-SXM4-40GB", moved=1e12)
    for error, expected in ((0.2, plain * np.exp(-0.2)), (-0.1, plain * np.exp(0.1)), (5.0, 80.0), (-5.0, 400.0)):
        model = replace(MODEL, correction=correction_of(error))
        assert draw("A100-SXM4-40GB", moved=1e12, model=model) == pytest.approx(expected, rel=1e-4)


def test_a_correction_is_of_its_own_architecture_alone() -> None:
    own = replace(MODEL, correction=correction_of(0.2))
    model = replace(MODEL, measured={"8.0": own})
    assert draw("A100-SXM4-40GB", moved=1e12, model=model) < 0.9 * draw("A100-SXM4-40GB", moved=1e12)
    assert draw("H100 SXM", moved=1e12, model=model) == draw("H100 SXM", moved=1e12)


def test_a_correction_by_other_figures_is_refused() -> None:
    own = replace(MODEL, correction=correction_of(0.2))
    held = json.loads(json.dumps(asdict(replace(MODEL, measured={"8.0": own}))))
    assert PowerModel.from_json(held).measured["8.0"] == own
    held["measured"]["8.0"]["correction"]["columns"][0] = "colour"
    with pytest.raises(ValueError, match="other figures"):
        PowerModel.from_json(held)
