import numpy as np
import pytest

from dippm.costs.kernels import ConvProblem, ElementwiseProblem, Family, GemmProblem, RowProblem
from dippm.costs.kernels.features import (
    DEVICE_FEATURES,
    compute_features,
    device_features,
    lower_bound_ms,
    tile_waste,
)
from dippm.devices import find_device, load_catalog
from dippm.errors import UsageError

PROBLEMS = {
    Family.LINEAR: GemmProblem.of(m=[1, 512, 1e7], n=[1, 1000, 1], k=[1, 2048, 1]),
    Family.BMM: GemmProblem.of(b=[1, 96, 1e6], m=[1, 128, 1], n=[1, 128, 1], k=[1, 64, 1]),
    Family.CONV: ConvProblem.of(
        batch=[1, 32, 4096], in_channels=[1, 64, 1], out_channels=[1, 64, 1], height=[1, 56, 4096]
    ),
    Family.ELEMENTWISE: ElementwiseProblem.of(elements=[1, 1e6, 1e12], operator=["relu", "add", "gelu"]),
    Family.SOFTMAX: RowProblem.of(rows=[1, 1000, 1e9], width=[1, 1000, 1]),
    Family.LAYER_NORM: RowProblem.of(rows=[1, 1000, 1e9], width=[1, 768, 1]),
}


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_features_are_finite_on_every_device(family: Family) -> None:
    for device in load_catalog():
        features = compute_features(family, PROBLEMS[family], [device])
        assert np.isfinite(features.matrix).all()
        assert (features.baseline_ms > 0).all()
        np.testing.assert_allclose(features.matrix[0, 0, -len(DEVICE_FEATURES) :], device_features(device), rtol=1e-5)


def test_a_b300_has_the_shared_memory_of_a_b200() -> None:
    column = DEVICE_FEATURES.index("log_shared_memory")
    assert device_features(find_device("B300"))[column] == device_features(find_device("B200"))[column]


def test_a_problem_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="softmax"):
        compute_features(Family.SOFTMAX, PROBLEMS[Family.CONV], [find_device("T4")])


def test_tile_waste_of_a_perfect_fit_is_zero() -> None:
    sizes = np.array([1280.0]), np.array([1280.0])
    per_sm, waste = tile_waste(*sizes, 1.0, tiles=[(128, 128)], sms=100)
    assert per_sm[0] == pytest.approx(0.0)
    assert waste[0] == pytest.approx(0.0)


def test_tile_waste_counts_overhang_and_the_last_wave() -> None:
    # 2 x 1 tiles for 129 rows on one SM: 256 x 128 done, 129 x 128 useful
    assert np.exp(
        tile_waste(np.array([129.0]), np.array([128.0]), 1.0, tiles=[(128, 128)], sms=1)[1][0, 0, 0]
    ) == pytest.approx(256 / 129)
    # three tiles on two SMs take two waves
    assert np.exp(
        tile_waste(np.array([384.0]), np.array([128.0]), 1.0, tiles=[(128, 128)], sms=2)[1][0, 0, 0]
    ) == pytest.approx(4 / 3)


def test_lower_bound_is_arithmetic_at_peak_or_traffic_beyond_the_cache() -> None:
    device = find_device("A100-PCIE-40GB")
    large = GemmProblem.of(m=8192, n=8192, k=8192)
    assert lower_bound_ms(Family.LINEAR, large, [device])[0, 0] == pytest.approx(2 * 8192**3 / 19.5e9)
    small = RowProblem.of(rows=16, width=16)
    assert lower_bound_ms(Family.SOFTMAX, small, [device])[0, 0] == 0.0
