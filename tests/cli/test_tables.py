from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from dippm.cli import predict
from dippm.cli.figures import format_count, format_interval, format_shape
from dippm.cli.predict import make_table
from dippm.costs.conditions import Conditions
from dippm.predictors.prediction import ModelInfo, Prediction, PredictorInfo


def make_prediction(**changes: object) -> Prediction:
    values: dict[str, object] = {
        "model": ModelInfo(source="net.onnx", framework="onnx", nodes=122, parameters=25_557_032),
        "device": "A100-SXM4-40GB",
        "conditions": Conditions(),
        "batch": 8,
        "inputs": {"input": (8, 3, 224, 224)},
        "macs": 32_716_718_080,
        "latency_ms": 7.94,
        "energy_j": 1.9,
        "memory_mb": 1240.0,
        "memory_parts_mb": {"context": 450.0, "weights": 98.0, "activations": 692.0, "slack": 0.0},
        "mig": "1g.5gb",
        "intervals": {"latency_ms": (7.0, 9.1), "energy_j": (1.4, 2.6), "memory_mb": (1180.0, 1390.0)},
        "predictor": PredictorInfo(name="physics", version="1", labels="kernels", warnings=("Watch out.",)),
    }
    return Prediction(**(values | changes))  # type: ignore[arg-type]


def show(content: RenderableType, *, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, emoji=False, color_system=None).print(content)
    return stream.getvalue()


def test_one_prediction_shows_figures_intervals_parts_and_warnings() -> None:
    text = show(make_table([make_prediction()]))
    for part in (
        "net.onnx", "122 operators", "25,557,032 parameters", "4.09 GMACs a sample", "input 3×224×224",
        "inference, fp32",
        "A100-SXM4-40GB", "7.94", "[7 – 9.1]", "1.9", "[1.4 – 2.6]", "1,240", "[1,180 – 1,390]", "1g.5gb",
        "memory = context 450 + weights 98 + activations 692\n", "! Watch out.", "fitted on: kernels",
    ):  # fmt: skip
        assert part in text


def test_energy_that_is_not_known_is_a_dash() -> None:
    known = make_prediction()
    intervals = {name: interval for name, interval in known.intervals.items() if name != "energy_j"}
    unknown = make_prediction(batch=32, energy_j=None, intervals=intervals)
    row = next(line for line in show(make_table([known, unknown])).splitlines() if " 32 " in line)
    assert row.split()[2] == "-"
    assert predict._row(unknown)[5:8] == [None, None, None]


def test_a_figure_has_its_row() -> None:
    rows = show(make_table([make_prediction(), make_prediction(batch=32, latency_ms=25.0, mig=None)])).splitlines()
    first = next(row for row in rows if "7.94" in row)
    second = next(row for row in rows if " 25 " in row)
    assert first.split() == ["A100-SXM4-40GB", "8", "7.94", "1.9", "1,240", "1g.5gb"]
    assert second.split() == ["32", "25", "1.9", "1,240", "none"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_table_keeps_to_the_terminal(width: int) -> None:
    table = make_table([make_prediction(), make_prediction(device="RTX PRO 6000 Blackwell Max-Q Workstation Edition")])
    assert all(len(line) <= width for line in show(table, width=width).splitlines())


def test_warning_of_one_device_names_it() -> None:
    other = PredictorInfo(name="physics", version="1", labels="kernels", warnings=("Watch out.", "Only here."))
    text = show(make_table([make_prediction(), make_prediction(device="T4", predictor=other)]))
    assert "\n! Watch out." in text
    assert "\n! T4, batch 8: Only here." in text
    assert text.count("Watch out.") == 1


def test_hostile_names_do_not_steer_the_terminal_or_the_markup() -> None:
    model = replace(make_prediction().model, source="[red]\x1b[2Jnet[/red]")
    text = show(make_table([make_prediction(model=model, inputs={"\x1b]0;x\x07": (8, 2)})]))
    assert "\x1b" not in text
    assert "[red]\\x1b[2Jnet[/red]" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 "), (999, "999 "), (1_500, "1.5 k"), (4.09e9, "4.09 G"), (2.5e13, "25 T")]
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


def test_intervals_and_shapes() -> None:
    assert format_interval((1.25, 12345.0)) == "1.25 – 12,345"
    assert format_shape((8, 64, 56, 56)) == "8×64×56×56"
    assert format_shape(()) == "scalar"
