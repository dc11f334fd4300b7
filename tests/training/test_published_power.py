"""The power model fitted on what boards drew."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
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

TRUE = PowerModel(idle=0.2, running_pj=12.0, flop_pj=3.0, tensor_pj=1.5, byte_pj=20.0)
EPOCH_SHARE = 0.93
BOARDS = ("A100-SXM4-40GB", "P100-PCIE-16GB", "V100-SXM2-32GB", "H100 SXM")


def make_points(boards: tuple[str, ...] = BOARDS, *, scale: float = 1.0) -> list[PowerPoint]:
    """Calls that draw what ``TRUE`` says, times a factor; some of them means over an epoch."""
    points = []
    for board in boards:
        device = find_device(board)
        for busy, plain, tensor, moved, of_epoch in (
            (1.0, 0.0, 0.0, 0.1, False),
            (1.0, 0.4, 0.0, 0.2, True),
            (1.0, 0.1, 0.3, 0.5, False),
            (0.5, 0.3, 0.0, 0.9, False),
            (0.9, 0.0, 0.2, 0.1, True),
        ):
            busy_s = busy * 0.01
            load = BoardLoad(
                busy_share=np.array([busy]),
                plain_flops=np.array([plain * busy_s * device.peak_tflops["fp32"] * 1e12]),
                tensor_flops=np.array([tensor * busy_s * device.peak_tflops.get("fp16_tensor", 0.0) * 1e12]),
                traffic_bytes=np.array([moved * busy_s * device.bandwidth_gb_s * 1e9]),
            )
            power = float(load.power_w(TRUE, device, np.array([10.0]))[0]) * (EPOCH_SHARE if of_epoch else 1.0)
            share = scale * power / device.board_power_w
            points.append(
                PowerPoint(device=device, load=load, latency_ms=10.0, power_share=share, is_of_epoch=of_epoch)
            )
    return points


def test_coefficients_that_made_the_power_are_found_again() -> None:
    points = make_points()
    fitted = fit_power(points, idle=0.2)
    for field in fields(PowerModel):
        assert getattr(fitted.model, field.name) == pytest.approx(getattr(TRUE, field.name), rel=0.02)
    assert fitted.epoch_share == pytest.approx(EPOCH_SHARE, abs=0.002)
    assert np.abs(log_power_errors(points, fitted)).max() < 0.003


def test_a_board_left_out_shows_how_far_it_lies_off() -> None:
    other = make_points(BOARDS[:1], scale=0.8)
    errors = leave_boards_out([*make_points(BOARDS[1:]), *other], idle=0.2)
    assert set(errors) == {find_device(board).name for board in BOARDS}
    assert errors["A100-SXM4-40GB"] == pytest.approx(-np.log(0.8), abs=0.02)


def test_the_spread_is_that_of_the_board_that_is_met_worst() -> None:
    errors = {"near": np.full(90, 0.1), "far": np.array([-0.4, *np.full(9, 0.2)])}
    assert spread_of(errors) == pytest.approx(0.22)


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
    assert found["fit"]["rows"] == 5 * len(BOARDS)
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        changed, before = Calibration.read(tmp_path / path.name), Calibration.read(path)
        assert changed.power.idle == 0.2
        assert changed.power.running_pj == pytest.approx(TRUE.running_pj, rel=0.02)
        assert changed.power_spread < 0.02
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
