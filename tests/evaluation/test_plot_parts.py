from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from dippm.evaluation.plot_parts import (
    MOST_MARKS,
    draw_actual_against_predicted,
    tidy,
    write_plainly,
)


def test_marks_stand_within_equal_axes() -> None:
    panel = Figure().subplots()
    measured, predicted = np.array([1.0, 10.0, 100.0]), np.array([1.5, 9.0, 300.0])
    draw_actual_against_predicted(panel, measured, predicted, title="latency, ms")
    assert panel.get_xlim() == panel.get_ylim()
    low, high = panel.get_xlim()
    assert low < 1.0 < 300.0 < high
    (marks,) = (each for each in panel.collections if len(each.get_offsets()) == 3)
    assert np.asarray(marks.get_offsets()).tolist() == [[1.0, 1.5], [10.0, 9.0], [100.0, 300.0]]
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert panel.get_xlabel() == "actual latency, ms"
    assert not marks.get_rasterized()


def test_many_marks_are_a_picture() -> None:
    panel = Figure().subplots()
    values = np.linspace(1.0, 2.0, MOST_MARKS + 1)
    draw_actual_against_predicted(panel, values, values, title="memory, MiB")
    (marks,) = (each for each in panel.collections if len(each.get_offsets()) > 1)
    assert marks.get_rasterized()


def test_numbers_have_no_powers_of_ten() -> None:
    panel = Figure().subplots()
    panel.set_xscale("log")
    panel.set_xlim(0.001, 100000)
    write_plainly(panel.xaxis)
    form = panel.xaxis.get_major_formatter()
    assert [form(value, 0) for value in (0.001, 1.0, 1000.0)] == ["0.001", "1", "1000"]


def test_a_tidy_panel_has_no_frame() -> None:
    panel = Figure().subplots()
    tidy(panel, "y")
    assert [panel.spines[side].get_visible() for side in ("top", "right", "left", "bottom")] == [
        False,
        False,
        True,
        True,
    ]
    assert panel.get_axisbelow() is True
