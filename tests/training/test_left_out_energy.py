"""Energy of calls that neither networks nor power model have seen."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")
pytest.importorskip("pyarrow")
from dippm.costs.conditions import Conditions
from dippm.costs.host import GRAPH_LAUNCH_MS
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import OWN_SOURCE, Label
from dippm.datasets.store.parquet import export_parquet
from dippm.datasets.store.traces import write_traces
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.predictors.additive import MORE_THAN_LEAST
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.training import architecture_networks, left_out_energy, published_power
from dippm.training.additive_protocol import HeldOut
from dippm.training.left_out_energy import LeftOut, LeftOutTime, leave_out, main, power_spread_of, sections_of
from dippm.training.power_fit import PowerPoint
from dippm.training.published_power import family_of, part_of


def made_up(power_points: Any) -> list[PowerPoint]:
    """Calls of two families on a board, each with a key, all of 10 ms."""
    points = [point for point in power_points.make(["H100 SXM", "H200 SXM"]) if not point.is_of_epoch]
    return [replace(point, family=str(place % 2), key=f"key{place}") for place, point in enumerate(points)]


def test_a_call_is_met_by_a_fit_on_the_others(power_points: Any) -> None:
    """The other family draws what the model says, this one a fifth more."""
    points = [
        replace(point, power_share=1.2 * point.power_share) if point.family == "1" else point
        for point in made_up(power_points)
    ]
    times = {point.key: LeftOutTime(ms=10.0, half_width=0.3) for point in points if point.family == "1"}
    found = leave_out(points, times, family_of, idle=power_points.model.idle)
    assert len(found.devices) == len(times)
    assert found.time == pytest.approx(0.0)
    assert found.power == pytest.approx(1 / 1.2 - 1, abs=0.02)
    assert found.energy == pytest.approx(found.power)
    # Energy depends on the time by less than the time itself.
    assert (found.below < 0.3).all()
    assert (found.above < 0.3).all()
    half_width = found.half_width(0.4)
    assert half_width == pytest.approx((np.hypot(found.below, 0.4) + np.hypot(found.above, 0.4)) / 2.0)
    assert (found.least_power_spread < 0.2).all()


def _of_energies(*errors: float) -> LeftOut:
    """Intervals that reach a fifth below and a tenth above."""
    nothing = np.zeros(len(errors))
    return LeftOut(
        devices=("H100",) * len(errors),
        time=nothing,
        power=nothing,
        energy=np.array(errors),
        below=nothing + 0.2,
        above=nothing + 0.1,
    )


def test_what_was_measured_may_lie_as_far_below_or_above() -> None:
    least = _of_energies(0.15, 0.25, -0.05, -0.15).least_power_spread
    expected = [0.0, math.sqrt(math.log(1.25) ** 2 - 0.2**2), 0.0, math.sqrt(math.log(0.85) ** 2 - 0.1**2)]
    assert least == pytest.approx(expected)


def test_the_power_is_off_by_what_nine_in_ten_of_all_energies_ask_for() -> None:
    # One after the other asks for 0.01, 0.02, ...
    asked = 0.01 * np.arange(1, 20)
    energies = np.exp(np.hypot(0.2, asked)) - 1.0
    assert power_spread_of([_of_energies(*energies[::2]), _of_energies(*energies[1::2])]) == pytest.approx(
        0.18, abs=2e-4
    )
    # Of three nobody knows what nine in ten ask for: the most of all.
    assert power_spread_of([_of_energies(*energies[:3])]) == pytest.approx(0.03, abs=2e-4)


def test_a_call_that_is_said_to_take_longer_takes_more_energy_and_less_power(power_points: Any) -> None:
    points = made_up(power_points)
    times = {points[0].key: LeftOutTime(ms=12.0, half_width=0.0), points[1].key: LeftOutTime(ms=10.0, half_width=0.0)}
    found = leave_out(points, times, family_of, idle=power_points.model.idle)
    assert sorted(found.time) == pytest.approx([0.0, 0.2])
    longer = int(np.argmax(found.time))
    assert 0.0 < found.energy[longer] < 0.2
    assert (found.least_power_spread > 0.02).tolist() == [place == longer for place in range(2)]
    assert found.power == pytest.approx(0.0, abs=0.02)


def test_each_device_has_a_row() -> None:
    found = LeftOut(
        devices=("H100", "H200", "H200"),
        time=np.array([0.1, -0.02, 0.04]),
        power=np.array([0.0, 0.5, -0.1]),
        energy=np.array([0.2, 0.2, 0.0]),
        below=np.sqrt(np.log([1.3, 1.1, 1.1]) ** 2 - 0.01**2),
        above=np.sqrt(np.log([1.3, 1.1, 1.1]) ** 2 - 0.01**2),
    )
    ((table,),) = [section.tables for section in sections_of({"families": found}, 0.01)]
    assert table.rows == [
        ["families", "all", "3", "5.3", "4.0", "20.0", "10.0", "13.3", "20.0", "67", "10"],
        ["families", "H100", "1", "10.0", "10.0", "0.0", "0.0", "20.0", "20.0", "100", "30"],
        ["families", "H200", "2", "3.0", "3.0", "30.0", "30.0", "10.0", "10.0", "50", "10"],
    ]


def _label(place: int, device: str, *, source: str = OWN_SOURCE, idle_w: float) -> Label:
    recipe = Recipe(
        collection="made-up",
        family="f",
        architecture="timm:resnet",
        arguments={"place": place},
        inputs=InputShapes(positional=(InputEntry(shape=(3, 32, 32)),)),
        batch=8,
    )
    configuration = Configuration(batch=8, conditions=Conditions.parse(precision="amp", runtime="cuda-graph"))
    measurement = Measurement(
        outcome=Outcome.OK, device=device, measured_at="", latency_ms=10.0, energy_j=1.0, idle_power_w=idle_w
    )
    return Label(recipe=recipe, configuration=configuration, measurement=measurement, source=source)


def test_the_command_leaves_models_and_families_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power_points: Any
) -> None:
    points = made_up(power_points)
    devices = {"H100 80GB HBM3": "H100 80GB HBM3", "H200": "H200"}
    labels = [
        _label(place, "H200" if "H200" in point.device.name else "H100 80GB HBM3", idle_w=119.0)
        for place, point in enumerate(points)
    ]
    # What was measured beside others tells neither an idle power nor an energy.
    labels.append(_label(99, "H200", source="dippm-shared", idle_w=400.0))
    export_parquet(labels, tmp_path / "labels.parquet")
    write_traces(tmp_path / "traces.parquet", [])
    asked: list[str] = []
    idles: list[float] = []
    groups: list[Any] = []

    def held(samples: Any, wall_ms: float) -> list[HeldOut]:
        nothing = np.zeros(0)
        rows = np.arange(len(samples.labels))
        return [
            HeldOut(
                validation=nothing.astype(int),
                validation_ms=nothing,
                validation_distance=nothing,
                test=rows,
                test_ms=np.full(len(rows), (wall_ms - GRAPH_LAUNCH_MS) / MORE_THAN_LEAST),
                test_distance=np.zeros(len(rows)),
            )
        ]

    def read(own: Sequence[Label], *_: Any) -> list[PowerPoint]:
        (device,) = {label.measurement.device for label in own}
        asked.append(devices[device])
        keys = {label.recipe.arguments["place"]: label.key for label in own}
        return [replace(points[place], model=str(place), key=key) for place, key in keys.items()]

    def recorded(own: Any, times: Any, group_of: Any, *, idle: float) -> LeftOut:
        idles.append(idle)
        groups.append(group_of)
        return leave_out(own, times, group_of, idle=idle)

    monkeypatch.setattr(architecture_networks, "load_traced_samples", lambda own, *_, **__: SimpleNamespace(labels=own))
    monkeypatch.setattr(left_out_energy, "predict_models", lambda samples, *_, **__: held(samples, 10.0))
    monkeypatch.setattr(left_out_energy, "predict_families", lambda samples, *_, **__: held(samples, 11.0))
    monkeypatch.setattr(published_power, "read_own_points", read)
    monkeypatch.setattr(left_out_energy, "leave_out", recorded)
    report = tmp_path / "report.md"
    places = {"labels": "labels.parquet", "traces": "traces.parquet", "cache": "graphs", "folder": "arrays"}
    shutil.copy(ARTEFACT_PATH, tmp_path)
    before = Calibration.read()
    main(
        [*(f"--{name}={tmp_path / place}" for name, place in places.items()), f"--report={report}", f"--out={tmp_path}"]
    )
    after = Calibration.read(tmp_path / ARTEFACT_PATH.name)
    # A tenth too much time, of which the made-up intervals know nothing, and hardly any error of power.
    assert 0.0 < after.busy_power_spreads["9.0"] < 0.1 < before.power_spread
    assert replace(after, busy_power_spreads=before.busy_power_spreads) == before
    assert asked == ["H100 80GB HBM3", "H200"]
    assert idles == pytest.approx([0.17, 0.17])
    text = report.read_text(encoding="utf-8")
    assert groups == [part_of, family_of]
    assert f"| models | all | {len(points)} | 0.0 | 0.0 |" in text
    assert f"| families | H200 | {len(points) // 2} | 10.0 | 10.0 |" in text
