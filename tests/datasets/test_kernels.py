from pathlib import Path

import numpy as np
import pytest

from dippm.costs.kernels import ConvProblem, ElementwiseProblem, Family, GemmProblem, RowProblem
from dippm.datasets.kernels import (
    Part,
    SweepDrift,
    load_family,
    rows_from_frame,
    split_by_shape,
)
from dippm.datasets.location import data_folder
from dippm.errors import DippmError

pd = pytest.importorskip("pandas")


def _has_tables() -> bool:
    try:
        return (data_folder() / "kernels").is_dir()
    except DippmError:
        return False


needs_tables = pytest.mark.skipif(not _has_tables(), reason="the measured kernel tables are not here; set DIPPM_DATA")


def _linear(*rows: tuple[float, str, int, int, int]) -> "pd.DataFrame":
    frame = pd.DataFrame(rows, columns=["Latency", "Device", "M", "N", "K"])
    return frame.assign(OPName="linear", B=1)


def _conv(**changes: object) -> "pd.DataFrame":
    row = {
        "OPName": "conv",
        "Latency": 0.9,
        "Device": "Tesla T4",
        "B": 38,
        "Input_Channel": 893,
        "Output_Channel": 326,
        "Kernel_Szie": 3,
        "Input_Size": 5,
        "Stride": 1,
        "Padding": 1,
    }
    return pd.DataFrame([row | changes])


def test_linear_reduces_over_the_tables_n() -> None:
    rows = rows_from_frame(Family.LINEAR, _linear((0.05, "NVIDIA A100-PCIE-40GB", 58, 13, 141)))
    assert isinstance(rows.problem, GemmProblem)
    assert (rows.problem.m[0], rows.problem.k[0], rows.problem.n[0], rows.problem.b[0]) == (58, 13, 141, 1)
    assert rows.device.tolist() == ["A100-PCIE-40GB"]


def test_bmm_reduces_over_the_tables_n() -> None:
    frame = pd.DataFrame([{"OPName": "bmm", "Latency": 0.04, "Device": "Tesla P4", "B": 6, "M": 27, "N": 21, "K": 390}])
    problem = rows_from_frame(Family.BMM, frame).problem
    assert isinstance(problem, GemmProblem)
    assert (problem.b[0], problem.m[0], problem.k[0], problem.n[0]) == (6, 27, 21, 390)


def test_conv_is_read_with_its_misspelt_column() -> None:
    problem = rows_from_frame(Family.CONV, _conv()).problem
    assert isinstance(problem, ConvProblem)
    assert (problem.batch[0], problem.in_channels[0], problem.out_channels[0], problem.height[0]) == (38, 893, 326, 5)


@pytest.mark.parametrize("column", ["Kernel_Szie", "Stride", "Padding"])
def test_other_convolutions_than_the_known_ones_are_refused(column: str) -> None:
    with pytest.raises(DippmError, match="3x3"):
        rows_from_frame(Family.CONV, _conv(**{column: 2}))


def test_scalar_forms_get_their_own_operator() -> None:
    frame = pd.DataFrame(
        [{"OPName": name, "Latency": 0.03, "Device": "Tesla T4", "B": 4, "H": 8} for name in ("add", "addu", "gelu")]
    )
    problem = rows_from_frame(Family.ELEMENTWISE, frame).problem
    assert isinstance(problem, ElementwiseProblem)
    assert problem.bytes.tolist() == [32 * 12, 32 * 8, 32 * 8]
    assert len(set(problem.operator.tolist())) == 3


def test_position_counts_within_a_device_and_table() -> None:
    rows = rows_from_frame(
        Family.LINEAR,
        _linear((1, "Tesla T4", 1, 1, 1), (1, "Tesla P4", 1, 1, 1), (1, "Tesla T4", 2, 1, 1)),
    )
    assert rows.position.tolist() == [0.0, 0.0, 0.001]


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (_linear((1, "Tesla K80", 1, 1, 1)), "K80"),
        (_linear((0, "Tesla T4", 1, 1, 1)), "not positive"),
        (_linear((1, "Tesla T4", 1, 1, 1)).drop(columns="K"), "lacks the columns K"),
        (_linear((1, "Tesla T4", 1, 1, 1)).assign(OPName="conv"), "other operators"),
    ],
)
def test_what_is_not_understood_is_refused(frame: "pd.DataFrame", word: str) -> None:
    with pytest.raises(DippmError, match=word):
        rows_from_frame(Family.LINEAR, frame)


def test_a_shape_falls_in_one_part_on_all_devices_whatever_the_order() -> None:
    shapes = [(m, 7, 9) for m in range(1, 400)]
    frame = _linear(*[(1.0, device, *shape) for device in ("Tesla T4", "Tesla P4") for shape in shapes])
    parts = split_by_shape(rows_from_frame(Family.LINEAR, frame), seed=3)
    assert (parts[:399] == parts[399:]).all()
    backwards = split_by_shape(rows_from_frame(Family.LINEAR, frame.iloc[::-1]), seed=3)
    assert (backwards[::-1] == parts).all()
    assert 0.10 < np.mean(parts == Part.TEST) < 0.20
    assert (split_by_shape(rows_from_frame(Family.LINEAR, frame), seed=4) != parts).any()


def test_drift_grows_between_knots_and_borrows_from_relatives() -> None:
    rows = rows_from_frame(
        Family.LINEAR,
        _linear((1, "Tesla T4", 1, 1, 1), (1, "Tesla T4", 2, 1, 1), (1, "Tesla P4", 1, 1, 1), (1, "Tesla P4", 2, 1, 1)),
    )
    drift = SweepDrift(
        knots=np.array([0.0, 0.002]),
        added_ms={"T4": np.array([0.0, 0.4]), "V100-PCIE-32GB": np.array([0.0, 0.8])},
        relatives={"P4": ("V100-PCIE-32GB",)},
    )
    np.testing.assert_allclose(drift.time_ms(rows), [0.0, 0.2, 0.0, 0.4])
    assert SweepDrift.none().time_ms(rows).tolist() == [0, 0, 0, 0]


def test_absent_tables_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DippmError, match="DIPPM_DATA"):
        load_family(Family.CONV)
    with pytest.raises(DippmError, match="does not exist"):
        load_family(Family.CONV, data=tmp_path)


@pytest.mark.data
@needs_tables
def test_published_tables_are_read_whole() -> None:
    rows = load_family(Family.LINEAR)
    assert len(rows) == 32_224
    assert isinstance(rows.problem, GemmProblem)
    # the first published row
    assert rows.time_ms[0] == pytest.approx(0.054507, abs=1e-6)
    assert (rows.problem.m[0], rows.problem.k[0], rows.problem.n[0]) == (58, 13, 141)
    assert len(load_family(Family.ELEMENTWISE)) == 11 * 8_750


@pytest.mark.data
@needs_tables
def test_published_rows_typed_by_hand() -> None:
    conv = load_family(Family.CONV)
    assert isinstance(conv.problem, ConvProblem)
    middle = len(conv) // 2
    assert (conv.time_ms[middle], conv.device[middle]) == (pytest.approx(7.100735982), "P4")
    assert (conv.problem.batch[middle], conv.problem.in_channels[middle]) == (55, 101)
    assert (conv.problem.out_channels[middle], conv.problem.height[middle]) == (784, 24)
    bmm = load_family(Family.BMM)
    assert isinstance(bmm.problem, GemmProblem)
    middle = len(bmm) // 2
    assert (bmm.time_ms[middle], bmm.device[middle]) == (pytest.approx(0.109482668), "P4")
    assert (bmm.problem.b[middle], bmm.problem.m[middle], bmm.problem.k[middle], bmm.problem.n[middle]) == (
        160,
        52,
        111,
        31,
    )
    for family, time_ms, rows, width in (
        (Family.SOFTMAX, 0.031916801, 127, 168),
        (Family.LAYER_NORM, 0.046912000, 60, 272),
    ):
        table = load_family(family)
        assert isinstance(table.problem, RowProblem)
        assert (table.time_ms[0], table.device[0]) == (pytest.approx(time_ms), "A100-PCIE-40GB")
        assert (table.problem.rows[0], table.problem.width[0]) == (rows, width)
