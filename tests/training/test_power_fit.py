"""Fits of the power model on calls whose power is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from dippm.costs.energy import chip_process
from dippm.devices import find_device
from dippm.training.power_fit import (
    PowerPoint,
    describe_power,
    fit_corrected_power,
    fit_power,
    leave_groups_out,
    log_power_errors,
    spread_of,
)


def board_of(point: PowerPoint) -> str:
    return point.device.name


def test_coefficients_that_made_the_power_are_found_again(power_points: Any) -> None:
    points = power_points.make()
    fitted = fit_power(points, idle=0.2)
    for name in ("running_pj", "flop_pj", "tensor_pj", "byte_pj"):
        assert getattr(fitted.model, name) == pytest.approx(getattr(power_points.model, name), rel=0.02)
    assert fitted.epoch_share == pytest.approx(power_points.epoch_share, abs=0.002)
    assert np.abs(log_power_errors(points, fitted)).max() < 0.003


def test_a_board_left_out_shows_how_far_it_lies_off(power_points: Any) -> None:
    other = power_points.make(power_points.boards[:1], scale=0.8)
    errors = leave_groups_out([*power_points.make(power_points.boards[1:]), *other], board_of, idle=0.2)
    assert set(errors) == {find_device(board).name for board in power_points.boards}
    assert errors["A100-SXM4-40GB"] == pytest.approx(-np.log(0.8), abs=0.02)


def test_what_no_coefficient_tells_is_corrected_by_how_a_board_is_used(power_points: Any) -> None:
    points = [
        # Calls that wait for their host a little draw more than the model can say.
        replace(point, power_share=point.power_share * (1.2 if point.load.kernel_share[0, 0] < 1.0 else 1.0))
        for point in power_points.make(["H100 SXM"])
    ]
    alone, corrected = (fit(points, idle=0.2) for fit in (fit_power, fit_corrected_power))
    assert replace(corrected.model, correction=None) == alone.model
    before, after = (np.abs(log_power_errors(points, fitted)).mean() for fitted in (alone, corrected))
    assert after < 0.75 * before
    left_out = [
        leave_groups_out(points, lambda point: str(point.power_share), idle=0.2, fit=fit)
        for fit in (fit_power, fit_corrected_power)
    ]
    assert left_out[0].keys() == left_out[1].keys()
    assert left_out[0] != left_out[1]


def test_without_a_call_nothing_is_corrected() -> None:
    assert fit_corrected_power([], idle=0.2) == fit_power([], idle=0.2)


def test_a_process_left_out_is_left_out_with_all_of_its_boards(power_points: Any) -> None:
    points = power_points.make(power_points.siblings)
    boards = leave_groups_out(points, board_of, idle=0.2)
    assert max(np.abs(own).max() for own in boards.values()) < 0.01
    # No other board tells what an operation on tensor cores takes.
    processes = leave_groups_out(points, lambda point: chip_process(point.device).name, idle=0.2)
    assert set(processes) == {"7 nm", "16 nm"}
    assert len(processes["7 nm"]) == 10
    assert np.abs(processes["7 nm"]).max() > 0.1
    assert np.abs(processes["16 nm"]).max() < 0.01


def test_the_spread_is_that_of_the_group_that_is_met_worst() -> None:
    errors = {"near": np.full(90, 0.1), "far": np.array([-0.4, *np.full(9, 0.2)])}
    assert spread_of(errors) == pytest.approx(0.22)


def test_errors_in_words() -> None:
    errors = np.log([1.1, 0.9, 1.0, 1.5])
    assert describe_power(errors) == {
        "rows": 4,
        "mean_percent": 17.5,
        "bias_percent": 5.0,
        "nine_in_ten_percent": pytest.approx(38, abs=0.1),
    }
