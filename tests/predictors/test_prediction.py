import json
from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions, Mode
from dippm.devices import find_device
from dippm.predictors.prediction import ModelInfo, NoSlice, Prediction, PredictorInfo, format_figure, round_figures


def prediction(*, mode: Mode = Mode.INFERENCE, source: str = "vgg16.onnx") -> Prediction:
    return Prediction(
        model=ModelInfo(source=source, framework="onnx", nodes=40, parameters=138_357_544),
        device="A100-SXM4-40GB",
        conditions=Conditions(mode=mode),
        batch=32,
        inputs={"input": (32, 3, 224, 224)},
        macs=495_000_000_000,
        latency_ms=33.123456,
        energy_j=9.8765432,
        memory_mb=2801.2,
        memory_parts_mb={"context": 450.0, "weights": 528.2, "activations": 1823.0},
        mig="1g.5gb",
        intervals={"latency_ms": (30.0, 40.0), "energy_j": (8.0, 12.0), "memory_mb": (2700.0, 3000.0)},
        predictor=PredictorInfo(name="test", version="1", labels="none", warnings=("mind the <gap>",)),
    )


def test_it_unpacks_as_in_the_papers_example() -> None:
    text = "Predicted Memory {0} MB, Energy {1} J, Latency {2} ms, MIG {3}".format(*prediction())
    assert text == "Predicted Memory 2801.2 MB, Energy 9.8765432 J, Latency 33.123456 ms, MIG 1g.5gb"


def test_json_has_four_digits_and_no_step_time_in_inference() -> None:
    answer = json.loads(json.dumps(prediction().to_dict()))
    assert answer["latency_ms"] == 33.12
    assert "step_time_ms" not in answer
    assert answer["intervals"]["memory_mb"] == [2700.0, 3000.0]
    assert answer["inputs"] == {"input": [32, 3, 224, 224]}


def test_step_time_is_the_latency_of_training() -> None:
    trained = prediction(mode=Mode.TRAINING)
    assert trained.step_time_ms == trained.latency_ms
    assert trained.to_dict()["step_time_ms"] == 33.12
    assert prediction().step_time_ms is None


@pytest.mark.parametrize(
    ("device", "mig", "is_known", "name"),
    [
        ("A100-SXM4-40GB", "2g.10gb", True, "2g.10gb"),
        ("A100-SXM4-40GB", None, True, "too large"),
        ("A100-SXM4-40GB", None, False, "unknown"),
        ("1g.5gb@A100-SXM4-40GB", None, True, "is a slice"),
        ("T4", None, True, "no MIG"),
        ("T4", None, False, "no MIG"),
    ],
)
def test_a_slice_or_why_there_is_none(device: str, mig: str | None, is_known: bool, name: str) -> None:
    no_slice = NoSlice.why(find_device(device), is_known=is_known)
    found = replace(prediction(), device=device, mig=mig, no_slice=no_slice)
    assert found.mig_name == name
    assert (found.to_dict()["mig"], found.to_dict()["no_slice"]) == (mig, None if mig else name)
    assert str(found).splitlines()[4].split() == ["MIG", *name.split()]
    assert f"<td colspan=2>{name}</td>" in found._repr_html_()


def test_text_names_conditions_and_warnings() -> None:
    text = str(prediction())
    assert "batch 32" in text
    assert "A100-SXM4-40GB" in text
    assert "mind the <gap>" in text


def test_a_notebook_shows_names_escaped() -> None:
    html = prediction(source="<script>x</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "mind the &lt;gap&gt;" in html


def test_the_largest_part_of_the_memory_decides() -> None:
    assert prediction().largest_part == "activations"
    assert replace(prediction(), memory_parts_mb={}).largest_part == "unknown"


def test_energy_that_is_not_known_is_a_dash_or_null() -> None:
    intervals = {"latency_ms": (30.0, 40.0), "memory_mb": (2700.0, 3000.0)}
    unknown = replace(prediction(), energy_j=None, intervals=intervals, mig=None)
    answer = json.loads(json.dumps(unknown.to_dict()))
    assert answer["energy_j"] is None
    assert set(answer["intervals"]) == {"latency_ms", "memory_mb"}
    assert list(unknown) == [2801.2, None, 33.123456, None]
    assert [line.split() for line in str(unknown).splitlines() if "energy" in line] == [["energy", "-"]]
    assert "33.1 ms" in unknown._repr_html_()
    assert "<td>- </td><td></td>" in unknown._repr_html_()


@pytest.mark.parametrize(
    ("value", "figure"), [(0.012345, "0.0123"), (12.345, "12.3"), (999.4, "999"), (999.6, "1,000"), (1e6, "1,000,000")]
)
def test_figures_for_people(value: float, figure: str) -> None:
    assert format_figure(value) == figure


def test_rounding_keeps_four_digits() -> None:
    assert [round_figures(value) for value in (123456.0, 0.00123456, 0.0)] == [123500.0, 0.001235, 0.0]


@pytest.mark.parametrize(
    ("device", "why"), [("T4", NoSlice.NO_MIG), ("B200", NoSlice.UNKNOWN), ("A100", NoSlice.TOO_LARGE)]
)
def test_a_card_whose_slices_are_not_listed_has_slices(device: str, why: NoSlice) -> None:
    assert NoSlice.why(find_device(device)) is why
