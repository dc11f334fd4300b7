"""The power model fitted on what boards drew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.parquet import read_parquet
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.training import published_power
from dippm.training.power_fit import PowerPoint
from dippm.training.published_power import main, read_own_points

Fit = Callable[[list[PowerPoint]], dict[str, Any]]
DATA = Path(__file__).parents[2] / "data"
H100 = DATA / "labels" / "h100" / "labels.parquet"


def own_points(power_points: Any) -> list[PowerPoint]:
    """Calls of three models of two families on a board of our own, whose idle share is what its labels say."""
    return [
        replace(point, model=str(place % 3), family=str(place % 2))
        for place, point in enumerate(power_points.make(["H100 SXM"]))
        if not point.is_of_epoch
    ]


def test_the_shipped_spread_is_that_of_the_processes_left_out() -> None:
    inference, training = Calibration.read(), Calibration.read(TRAINING_ARTEFACT_PATH)
    own = inference.power.measured["9.0"]
    assert own.correction is not None
    alone = {**inference.power.measured, "9.0": replace(own, correction=None)}
    assert replace(inference.power, measured=alone) == training.power
    assert inference.power_spread == training.power_spread
    provenance = inference.provenance["published_power"]
    assert provenance == training.provenance["published_power"]
    assert isinstance(provenance, dict)
    boards, processes = provenance["boards_left_out"], provenance["processes_left_out"]
    assert sorted(board for own in processes.values() for board in own["boards"]) == sorted(boards)
    worst = max(own["nine_in_ten_percent"] for own in processes.values())
    # Most of the worst errors are of too much power, where the spread is the logarithm of the percentage.
    assert 100 * np.expm1(inference.power_spread) == pytest.approx(worst, abs=0.5)
    assert (list(inference.power_spreads), dict(training.power_spreads)) == (["9.0"], {})
    families = provenance["architecture_9.0"]["families_left_out"]["nine_in_ten_percent"]
    assert 100 * np.expm1(inference.power_spreads["9.0"]) == pytest.approx(families, abs=1.0)


@pytest.fixture(name="fit")
def _fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], power_points: Any) -> Fit:
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
        own = own_points(power_points)
        monkeypatch.setattr(published_power, "read_own_points", lambda _labels, _cache, _predictor: own)
        main(["--folder", str(DATA / "published"), "--labels", str(H100), "--out", str(tmp_path)])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found["provenance"]  # type: ignore[no-any-return]

    return run


@pytest.mark.parametrize("before", ["", "; power of something on K80"])
def test_the_labels_of_power_are_named_where_it_was_fitted(
    fit: Fit, power_points: Any, tmp_path: Path, before: str
) -> None:
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        copy = tmp_path / path.name
        replace(Calibration.read(copy), labels=f"times of images; kernels, FP32{before}").write(copy)
    fit(power_points.make())
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        *others, power = Calibration.read(tmp_path / path.name).labels.split("; ")
        assert others == ["times of images", "kernels, FP32"]
        assert power.startswith("power of training on ")


def test_the_shipped_labels_name_every_board_that_was_fitted_on() -> None:
    provenance = Calibration.read().provenance["published_power"]
    assert isinstance(provenance, dict)
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        power = Calibration.read(path).labels.split("; ")[-1]
        named = [
            name
            for name in ("A100", "A40", "GTX 1080 Ti", "Quadro RTX 6000", "P100", "V100", "H100", "H200")
            if name in power
        ]
        left = [board for board in provenance["boards_left_out"] if not any(name in board for name in named)]
        assert left == []


def test_the_command_changes_both_artefacts(fit: Fit, power_points: Any, tmp_path: Path) -> None:
    found = fit(power_points.make(power_points.boards[:-1]))
    count, own = len(own_points(power_points)), found["architecture_9.0"]
    assert found["fit"]["rows"] == 5 * len(power_points.boards[:-1]) + count
    assert own["fit"]["rows"] == own["models_left_out"]["rows"] == own["families_left_out"]["rows"] == count
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        changed, before = Calibration.read(tmp_path / path.name), Calibration.read(path)
        assert changed.power.idle == 0.2
        assert changed.power.running_pj == pytest.approx(power_points.model.running_pj, rel=0.02)
        assert changed.power_spread < 0.02
        # Of one board nothing is left once that is left out: the energies stay where the fit begins.
        assert set(changed.power_spreads) == ({"9.0"} if path == ARTEFACT_PATH else set())
        assert changed.power_devices == tuple(sorted(find_device(board).name for board in power_points.boards))
        assert changed.rates == before.rates
        assert set(changed.power.measured) == {"9.0", "10.0", "10.3"}
        # What the H100 drew before its labels were taken, of 700 W.
        assert changed.power.on(find_device("B200")).idle == pytest.approx(120 / 700, abs=0.003)
        assert changed.provenance["published_power"] == found


def test_the_spread_is_not_that_of_boards_with_a_sibling(fit: Fit, power_points: Any, tmp_path: Path) -> None:
    found = fit(power_points.make(power_points.siblings))
    assert max(own["nine_in_ten_percent"] for own in found["boards_left_out"].values()) < 1
    assert found["processes_left_out"]["7 nm"]["boards"] == ["A100-PCIE-40GB", "A100-SXM4-40GB"]
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        assert Calibration.read(tmp_path / path.name).power_spread > 0.1


def test_missing_traces_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        main(["--labels", str(H100), "--out", str(ARTEFACT_FOLDER)])
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


def test_points_of_our_own_are_calls_that_do_not_wait(tmp_path: Path) -> None:
    from dippm.predictors.physics import PhysicsPredictor

    labels = [
        label
        for label in read_parquet(H100)
        if label.measurement.energy_j and label.recipe.family == "mobilenet" and label.source == "dippm"
    ]
    assert labels
    (point, *_) = read_own_points(labels[:1], GraphCache(tmp_path), PhysicsPredictor.load())
    (label, *_) = labels
    assert point.device.name == "H100 80GB HBM3"
    assert (point.model, point.family) == (label.recipe.model_key, "mobilenet")
    assert point.power_share * 700 == pytest.approx(1e3 * label.measurement.energy_j / label.measurement.latency_ms)
    assert point.key == label.key


def test_a_call_that_was_disturbed_tells_no_power(tmp_path: Path) -> None:
    from dippm.predictors.physics import PhysicsPredictor

    label = next(label for label in read_parquet(H100) if label.measurement.energy_j and label.source == "dippm")
    counts = []
    for share in (0.02, 0.04, None):
        scatter_ms = None if share is None else share * label.measurement.latency_ms
        measurement = replace(label.measurement, latency_std_ms=scatter_ms)
        scattered = replace(label, measurement=measurement)
        counts.append(len(read_own_points([scattered], GraphCache(tmp_path), PhysicsPredictor.load())))
    assert counts == [1, 0, 0]


@pytest.mark.parametrize(
    ("boards", "code"), [([], "labels.none"), (["H100 SXM", "A100-SXM4-40GB"], "labels.ambiguous")]
)
def test_labels_are_of_one_architecture(
    boards: list[str], code: str, power_points: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "power"
    traces.mkdir()
    head = "device,model,input,batch,is_max_power_limit,latency_ms_per_batch,avg_power_w,power_limit_w"
    (traces / "zeus_training_power.csv").write_text(f"{head}\nA40 48GB,ShuffleNetV2,C,8,1,5,60,300\n", encoding="utf-8")
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    own = power_points.make(boards) if boards else []
    monkeypatch.setattr(published_power, "read_own_points", lambda _labels, _cache, _predictor: own)
    with pytest.raises(UsageError) as caught:
        main(["--labels", str(H100), "--out", str(tmp_path)])
    assert caught.value.code == code
