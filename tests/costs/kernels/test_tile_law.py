import dataclasses

import numpy as np
import pytest

from dippm.costs.kernels import GemmProblem
from dippm.costs.kernels.tile_law import TILES, TileLaw, tile_terms
from dippm.devices import find_device, load_catalog

LAW = TileLaw(
    slowness=1.05,
    prologue_steps=10.0,
    shared_wave=0.4,
    latency_waves=0.3,
    throttle=1.2,
    heat_ms=1.0,
    input_cost=1.0,
    output_cost=1.5,
    cache_reach=0.8,
    sharpness=2.5,
    floor_ms=0.03,
    shadow_ms=0.01,
)
A100 = find_device("A100-PCIE-40GB")


def test_a_large_product_runs_near_the_peak_rate() -> None:
    problem = GemmProblem.of(b=512, m=1024, n=1024, k=1024)
    peak_ms = problem.flops / (A100.peak_tflops["fp32"] * 1e9)
    assert 1.0 < LAW.time_ms(problem, A100)[0] / peak_ms[0] < 1.2


def test_an_overhanging_tile_costs_as_much_as_a_full_one() -> None:
    largest = TILES.index((128, 128))
    full, overhang, more = tile_terms(GemmProblem.of(b=100, m=[256, 129, 257], n=256, k=64), A100).waves[:, largest]
    assert full == overhang
    assert more == 1.5 * full


def test_the_tile_sizes_count_alike() -> None:
    # 64 rows fill half of a tile that is 128 high: twice the time for two of the four sizes is their mean's root.
    full, half = (LAW.time_ms(GemmProblem.of(b=4000, m=m, n=128, k=1024), A100)[0] for m in (128, 64))
    assert full / half == pytest.approx(2**0.5, rel=0.02)


def test_time_never_falls_as_a_product_grows() -> None:
    sizes = 2.0 ** np.arange(0, 16)
    for problem in (
        GemmProblem.of(b=sizes, m=100, n=100, k=64),
        GemmProblem.of(b=16, m=sizes, n=100, k=64),
        GemmProblem.of(b=16, m=100, n=sizes, k=64),
        GemmProblem.of(b=16, m=100, n=100, k=sizes),
    ):
        for device in load_catalog():
            time_ms = LAW.time_ms(problem, device)
            assert np.isfinite(time_ms).all(), device.name
            assert (time_ms >= LAW.floor_ms).all(), device.name
            assert (np.diff(time_ms) >= 0.0).all(), device.name


def test_only_a_device_short_of_power_throttles_and_not_below_its_base_clock() -> None:
    problem = GemmProblem.of(b=1, m=64, n=64, k=64)
    for name in ("V100-PCIE-32GB", "P100-PCIE-16GB", "A100-PCIE-40GB"):
        assert tile_terms(problem, find_device(name)).log_clock[0] == 0.0
    for name in ("T4", "P4"):
        device = find_device(name)
        base = np.log(device.base_clock_mhz / device.boost_clock_mhz)
        assert base <= tile_terms(problem, device).log_clock[0] < 0.0


def test_long_kernels_throttle_and_short_ones_do_not() -> None:
    device = find_device("T4")
    short, long = GemmProblem.of(b=1, m=64, n=64, k=64), GemmProblem.of(b=1000, m=1024, n=1024, k=1024)
    cool = TileLaw.from_dict(LAW.to_dict() | {"throttle": 1e-9})
    assert LAW.time_ms(short, device)[0] == pytest.approx(cool.time_ms(short, device)[0], rel=0.01)
    assert LAW.time_ms(long, device)[0] > 1.5 * cool.time_ms(long, device)[0]


def test_operands_that_stay_in_the_cache_are_cheaper_to_move() -> None:
    small, large = GemmProblem.of(b=10, m=512, n=512, k=2), GemmProblem.of(b=1000, m=512, n=512, k=2)
    own = [LAW.kernel_ms(tile_terms(each, A100))[0] / each.bytes[0] for each in (small, large)]
    assert own[0] < 0.8 * own[1]


def test_a_kernel_in_the_shadow_takes_the_floor_and_a_longer_one_shows_the_rest() -> None:
    problem = GemmProblem.of(b=[1, 4000], m=[8, 128], n=[8, 128], k=[8, 1024])
    kernel_ms = LAW.kernel_ms(tile_terms(problem, A100))
    assert kernel_ms[0] < LAW.shadow_ms < kernel_ms[1]
    assert LAW.time_ms(problem, A100).tolist() == [LAW.floor_ms, LAW.floor_ms + kernel_ms[1] - LAW.shadow_ms]


def test_it_survives_being_stored() -> None:
    assert TileLaw.from_dict(LAW.to_dict()) == LAW


def test_a_sum_beyond_the_measured_depths_is_shared_by_all_multiprocessors() -> None:
    shallow, deep = (LAW.time_ms(GemmProblem.of(m=64, n=64, k=k), A100)[0] for k in (4096, 64 * 4096))
    # One tile on one multiprocessor would take 64 times as long.
    assert shallow < deep < 3.0 * shallow
    wider = dataclasses.replace(
        A100, sm_count=216, peak_tflops={name: 2.0 * rate for name, rate in A100.peak_tflops.items()}
    )
    assert LAW.time_ms(GemmProblem.of(m=64, n=64, k=64 * 4096), wider)[0] < deep
