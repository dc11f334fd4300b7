"""The power model fitted on what boards drew."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from dippm.costs.energy import PowerModel
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.training import published_power
from dippm.training.published_power import (
    PowerPoint,
    fit_power,
    leave_boards_out,
    log_power_errors,
    main,
    spread_of,
)

TRUE = PowerModel(idle=0.2, base=0.5, compute=0.4, memory=0.0)
BOARDS = ("A40", "V100-PCIE-32GB", "H100 PCIe")


def make_points(boards: tuple[str, ...] = BOARDS, *, scale: float = 1.0) -> list[PowerPoint]:
    """Half idle and busy calls that draw what ``TRUE`` says, times a factor."""
    points = []
    for board in boards:
        device = find_device(board)
        for busy, used in ((1.0, 0.1), (1.0, 0.9), (0.5, 0.3), (0.9, 0.6)):
            load = BoardLoad(
                busy_share=np.array([busy]),
                fp32_flops=np.array([used * busy * 0.01 * device.peak_tflops["fp32"] * 1e12]),
                traffic_bytes=np.array([1e9]),
            )
            power = load.power_w(TRUE, device, np.array([10.0]))[0]
            share = scale * float(power) / device.board_power_w
            points.append(PowerPoint(device=device, load=load, latency_ms=10.0, power_share=share))
    return points


def test_coefficients_that_made_the_power_are_found_again() -> None:
    points = make_points()
    model = fit_power(points, idle=0.2)
    assert (model.base, model.compute) == pytest.approx((TRUE.base, TRUE.compute), abs=0.002)
    assert (model.idle, model.memory) == (0.2, 0.0)
    assert np.abs(log_power_errors(points, model)).max() < 0.003


def test_a_board_left_out_shows_how_far_it_lies_off() -> None:
    other = make_points(("A40",), scale=0.8)
    errors = leave_boards_out([*make_points(BOARDS[1:]), *other], idle=0.2)
    assert set(errors) == {find_device(board).name for board in BOARDS}
    assert errors["A40"] == pytest.approx(-np.log(0.8), abs=0.01)


def test_the_spread_counts_each_board_alike() -> None:
    errors = {"many": np.full(90, 0.1), "few": np.array([-0.4, 0.2])}
    assert spread_of(errors, 0.5) == pytest.approx(0.1)
    assert spread_of(errors, 0.75) == pytest.approx(0.2)
    assert spread_of(errors) == pytest.approx(0.4)


def test_the_shipped_model_is_that_of_the_boards_left_out() -> None:
    inference, training = Calibration.read(), Calibration.read(TRAINING_ARTEFACT_PATH)
    assert (inference.power, inference.power_spread) == (training.power, training.power_spread)
    assert inference.provenance["published_power"] == training.provenance["published_power"]


def test_the_command_changes_both_artefacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        shutil.copy(path, tmp_path)
    traces = tmp_path / "power"
    traces.mkdir()
    head = "device,model,input,batch,is_max_power_limit,latency_ms_per_batch,avg_power_w,power_limit_w"
    (traces / "zeus_training_power.csv").write_text(f"{head}\nA40 48GB,ShuffleNetV2,C,8,1,5,60,300\n", encoding="utf-8")
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    monkeypatch.setattr(published_power, "_published_points", lambda _folder, _predictor: make_points())
    main(["--folder", str(Path(__file__).parents[2] / "data" / "published"), "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert found["fit"]["rows"] == 4 * len(BOARDS)
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        changed, before = Calibration.read(tmp_path / path.name), Calibration.read(path)
        assert changed.power.idle == 0.2
        assert changed.power.base == pytest.approx(TRUE.base, abs=0.002)
        assert changed.power_spread < 0.01
        assert changed.rates == before.rates
        assert changed.provenance["published_power"] == found


def test_missing_traces_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        main(["--out", str(ARTEFACT_FOLDER)])
    assert caught.value.code == "data.missing"


@pytest.mark.data
def test_points_of_training_and_inference_come_from_the_tables() -> None:
    from dippm.datasets.location import data_folder
    from dippm.datasets.power import read_busy_runs
    from dippm.predictors.physics import PhysicsPredictor

    folder = data_folder() / "power"
    if not folder.is_dir():
        pytest.skip("the measured tables are not here")
    runs = [run for run in read_busy_runs(folder) if run.model == "ResNet50"][:2]
    points = published_power._trained_points(runs, PhysicsPredictor.load())
    assert [point.latency_ms for point in points] == [run.step_time_ms for run in runs]
    assert all(0.9 < float(point.load.busy_share[0]) <= 1.0 for point in points)
