"""The power model fitted on what boards drew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from dippm.costs.energy import PowerModel, chip_process
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UsageError
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.training import published_power
from dippm.training.published_power import (
    PowerPoint,
    fit_power,
    leave_groups_out,
    log_power_errors,
    main,
    spread_of,
)

TRUE = PowerModel(idle=0.2, running_pj=12.0, flop_pj=3.0, tensor_pj=1.5, byte_pj=20.0)
EPOCH_SHARE = 0.93
Fit = Callable[[list[PowerPoint]], dict[str, Any]]
BOARDS = ("A100-SXM4-40GB", "P100-PCIE-16GB", "V100-SXM2-32GB", "H100 SXM")
# Two forms of the one chip that has tensor cores, and one chip without.
SIBLINGS = ("A100-SXM4-40GB", "A100-PCIE-40GB", "P100-PCIE-16GB")


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


def board_of(device: DeviceSpec) -> str:
    return device.name


def test_coefficients_that_made_the_power_are_found_again() -> None:
    points = make_points()
    fitted = fit_power(points, idle=0.2)
    for field in fields(PowerModel):
        assert getattr(fitted.model, field.name) == pytest.approx(getattr(TRUE, field.name), rel=0.02)
    assert fitted.epoch_share == pytest.approx(EPOCH_SHARE, abs=0.002)
    assert np.abs(log_power_errors(points, fitted)).max() < 0.003


def test_a_board_left_out_shows_how_far_it_lies_off() -> None:
    other = make_points(BOARDS[:1], scale=0.8)
    errors = leave_groups_out([*make_points(BOARDS[1:]), *other], board_of, idle=0.2)
    assert set(errors) == {find_device(board).name for board in BOARDS}
    assert errors["A100-SXM4-40GB"] == pytest.approx(-np.log(0.8), abs=0.02)


def test_a_process_left_out_is_left_out_with_all_of_its_boards() -> None:
    points = make_points(SIBLINGS)
    boards = leave_groups_out(points, board_of, idle=0.2)
    assert max(np.abs(own).max() for own in boards.values()) < 0.01
    # No other board tells what an operation on tensor cores takes.
    processes = leave_groups_out(points, lambda device: chip_process(device).name, idle=0.2)
    assert set(processes) == {"7 nm", "16 nm"}
    assert len(processes["7 nm"]) == 10
    assert np.abs(processes["7 nm"]).max() > 0.1
    assert np.abs(processes["16 nm"]).max() < 0.01


def test_the_spread_is_that_of_the_group_that_is_met_worst() -> None:
    errors = {"near": np.full(90, 0.1), "far": np.array([-0.4, *np.full(9, 0.2)])}
    assert spread_of(errors) == pytest.approx(0.22)


def test_the_shipped_spread_is_that_of_the_processes_left_out() -> None:
    inference, training = Calibration.read(), Calibration.read(TRAINING_ARTEFACT_PATH)
    assert (inference.power, inference.power_spread) == (training.power, training.power_spread)
    provenance = inference.provenance["published_power"]
    assert provenance == training.provenance["published_power"]
    assert isinstance(provenance, dict)
    boards, processes = provenance["boards_left_out"], provenance["processes_left_out"]
    assert sorted(board for own in processes.values() for board in own["boards"]) == sorted(boards)
    worst = max(own["nine_in_ten_percent"] for own in processes.values())
    # Most of the worst errors are of too much power, where the spread is the logarithm of the percentage.
    assert 100 * np.expm1(inference.power_spread) == pytest.approx(worst, abs=0.5)


@pytest.fixture(name="fit")
def _fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fit:
    """Runs the command on copies of the shipped artefacts, with made-up points: what it prints."""
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        shutil.copy(path, tmp_path)
    traces = tmp_path / "power"
    traces.mkdir()
    head = "device,model,input,batch,is_max_power_limit,latency_ms_per_batch,avg_power_w,power_limit_w"
    (traces / "zeus_training_power.csv").write_text(f"{head}\nA40 48GB,ShuffleNetV2,C,8,1,5,60,300\n", encoding="utf-8")
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))

    def run(points: list[PowerPoint]) -> dict[str, Any]:
        monkeypatch.setattr(published_power, "_published_points", lambda _folder, _predictor: points)
        main(["--folder", str(Path(__file__).parents[2] / "data" / "published"), "--out", str(tmp_path)])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


@pytest.mark.parametrize("before", ["", "; power of something on K80"])
def test_the_labels_of_power_are_named_where_it_was_fitted(fit: Fit, tmp_path: Path, before: str) -> None:
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        copy = tmp_path / path.name
        replace(Calibration.read(copy), labels=f"times of images; kernels, FP32{before}").write(copy)
    fit(make_points())
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        *others, power = Calibration.read(tmp_path / path.name).labels.split("; ")
        assert others == ["times of images", "kernels, FP32"]
        assert power.startswith("power of training on ")


def test_the_shipped_labels_name_every_board_that_was_fitted_on() -> None:
    provenance = Calibration.read().provenance["published_power"]
    assert isinstance(provenance, dict)
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        power = Calibration.read(path).labels.split("; ")[-1]
        named = [name for name in ("A100", "A40", "GTX 1080 Ti", "Quadro RTX 6000", "P100", "V100") if name in power]
        left = [board for board in provenance["boards_left_out"] if not any(name in board for name in named)]
        assert left == []


def test_the_command_changes_both_artefacts(fit: Fit, tmp_path: Path) -> None:
    found = fit(make_points())
    assert found["fit"]["rows"] == 5 * len(BOARDS)
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        changed, before = Calibration.read(tmp_path / path.name), Calibration.read(path)
        assert changed.power.idle == 0.2
        assert changed.power.running_pj == pytest.approx(TRUE.running_pj, rel=0.02)
        assert changed.power_spread < 0.02
        assert changed.rates == before.rates
        assert changed.provenance["published_power"] == found


def test_the_spread_is_not_that_of_boards_with_a_sibling(fit: Fit, tmp_path: Path) -> None:
    found = fit(make_points(SIBLINGS))
    assert max(own["nine_in_ten_percent"] for own in found["boards_left_out"].values()) < 1
    assert found["processes_left_out"]["7 nm"]["boards"] == ["A100-PCIE-40GB", "A100-SXM4-40GB"]
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        assert Calibration.read(tmp_path / path.name).power_spread > 0.1


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
