import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs.tensor_cores import narrow_gemm_seconds, tensor_gemm_seconds

PEAK = 100e12


def seconds(b: float, m: float, n: float, k: float, *, sms: int = 100) -> float:
    sizes = (np.array([float(value)]) for value in (b, m, n, k))
    return float(tensor_gemm_seconds(*sizes, peak_flops=np.array([PEAK]), sm_count=sms)[0])


def test_a_product_of_whole_waves_runs_near_its_peak() -> None:
    ideal = 2 * 25600 * 12800 * 8192 / PEAK
    assert ideal < seconds(1, 25600, 12800, 8192) < 1.02 * ideal


def test_one_row_costs_as_much_as_a_whole_tile() -> None:
    assert seconds(1, 1, 4096, 4096) == seconds(1, 64, 4096, 4096)


def test_a_tile_more_than_a_wave_starts_another() -> None:
    assert seconds(101, 64, 32, 4096) > seconds(100, 64, 32, 4096)


@given(
    st.tuples(*[st.integers(1, 4096)] * 4),
    st.integers(0, 3),
    st.integers(1, 512),
)
def test_no_size_makes_it_faster(sizes: tuple[int, ...], which: int, more: int) -> None:
    larger = tuple(size + more * (position == which) for position, size in enumerate(sizes))
    assert seconds(*larger) >= seconds(*sizes)


@given(st.tuples(*[st.integers(1, 4096)] * 4))
def test_nothing_beats_the_peak(sizes: tuple[int, ...]) -> None:
    b, m, n, k = sizes
    assert seconds(*sizes) >= 2.0 * b * m * n * k / PEAK


@pytest.mark.parametrize("which", range(4))
def test_large_sizes_stay_finite(which: int) -> None:
    sizes = [64.0] * 4
    sizes[which] = 1e12
    assert np.isfinite(seconds(*sizes))


def test_a_long_sum_into_few_tiles_is_shared() -> None:
    deep = seconds(1, 64, 32, 1_000_000)
    assert deep < 0.05 * 1_000_000 / 4000 * seconds(1, 64, 32, 4000)
    assert deep > 2 * 64 * 32 * 1_000_000 / PEAK


def packed_seconds(*sizes: float) -> float:
    columns = (np.array([float(size)]) for size in sizes)
    return float(narrow_gemm_seconds(*columns, peak_flops=np.array([PEAK]))[0])


def test_a_kernel_for_packed_weights_wastes_no_more_than_sixteen_rows() -> None:
    assert packed_seconds(1, 1, 4096, 4096) == packed_seconds(1, 16, 4096, 4096)
    assert packed_seconds(1, 16, 4096, 4096) == pytest.approx(2 * 16 * 4096**2 / (0.8 * PEAK))
    assert packed_seconds(3, 17, 100, 200) == pytest.approx(2 * 3 * 32 * 100 * 200 / (0.8 * PEAK))
    assert packed_seconds(1, 1, 4096, 4096) < seconds(1, 1, 4096, 4096) / 5
