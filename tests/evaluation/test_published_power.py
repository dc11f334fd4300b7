"""Power beside what others have published: what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dippm.evaluation.published import read_graphs
from dippm.evaluation.published_power import PowerScore, render_held_out_power, render_power, score_power
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_held_out_power_runs, read_power_runs
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER


@pytest.fixture(scope="module")
def score() -> PowerScore:
    """One row of DistilBERT on a GTX 1080 Ti."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    runs, _ = read_power_runs(FOLDER)
    run = next(run for run in runs if run.row.source == "irene-device2" and "distilbert" in run.row.model)
    (result,) = score_power([run], read_graphs([run], FOLDER), PhysicsPredictor.load())
    return result


def test_power_is_energy_over_time(score: PowerScore) -> None:
    row, prediction = score.run.row, score.prediction
    assert score.measured_w == pytest.approx(1e3 * row.energy_j / row.latency_ms)  # type: ignore[operator]
    assert score.predicted_w == pytest.approx(1e3 * prediction.energy_j / prediction.latency_ms)  # type: ignore[operator]
    ratio = (1 + score.power_error_percent / 100) * prediction.latency_ms / row.latency_ms  # type: ignore[operator]
    assert 1 + score.energy_error_percent / 100 == pytest.approx(ratio)


def test_the_power_at_the_measured_time_takes_the_measured_time(score: PowerScore) -> None:
    load = PhysicsPredictor.load().load_of(
        read_graphs([score.run], FOLDER)[score.run.graph_key],
        batch=score.run.row.batch,
        device=score.run.device,
        conditions=score.run.conditions,
        software=score.run.software,
    )
    power = load.power_w(Calibration.read().power, score.run.device, np.array([score.run.row.latency_ms]))
    assert score.timed_w == pytest.approx(float(power[0]))
    assert score.timed_error_percent == pytest.approx(100 * (float(power[0]) / score.measured_w - 1))


def test_an_energy_beyond_the_interval_is_not_covered(score: PowerScore) -> None:
    low, high = score.prediction.intervals["energy_j"]
    for energy_j, expected in ((0.99 * low, False), (1.01 * low, True), (0.99 * high, True), (1.01 * high, False)):
        row = replace(score.run.row, energy_j=energy_j)
        assert replace(score, run=replace(score.run, row=row)).is_covered is expected


def test_the_section_has_a_line_for_each_table_and_board(score: PowerScore) -> None:
    lines = render_power([score, score])
    assert "## Power and energy" in lines
    assert sum(line.startswith("| irene-device2, GeForce GTX 1080 Ti | 2 |") for line in lines) == 1
    assert any(line.startswith("| Tesla P100-PCIE-16GB | 10 |") for line in lines)
    assert any(line.startswith("| 7 nm | A100-PCIE-40GB, A100-SXM4-40GB | 42 |") for line in lines)
    assert render_power([]) == []


def test_boards_that_nothing_was_fitted_on_have_a_section_of_their_own(score: PowerScore) -> None:
    lines = render_held_out_power([score])
    assert "## Power of boards that nothing was fitted on" in lines
    assert lines[-1].startswith("| irene-device2, GeForce GTX 1080 Ti | 1 |")
    assert render_held_out_power([]) == []


def test_every_held_out_row_is_asked_and_none_is_of_a_fitted_board() -> None:
    runs, left_out = read_held_out_power_runs(FOLDER)
    assert not left_out
    fitted = {run.device.name for run in read_power_runs(FOLDER)[0]}
    assert {run.device.name for run in runs} & fitted == set()
