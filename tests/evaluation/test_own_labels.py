from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.precision import Precision
from dippm.datasets.graph_cache import GraphCache, read_recipe
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.software_graphs import software_of
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.own_labels import (
    Figure,
    LabelReport,
    LabelScore,
    choose_labels,
    evaluate_labels,
    main,
    score_label,
    sections_of,
)
from dippm.evaluation.report_page import render_markdown
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph.fingerprint import fingerprint
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.predictors.physics import PhysicsPredictor

LABELS = Path(__file__).parents[2] / "data" / "labels" / "h200" / "labels.parquet"


def score(
    measured: float,
    predicted: float,
    *,
    family: str = "vgg",
    steady: bool | None = True,
    mode: Mode = Mode.INFERENCE,
    precision: Precision = Precision.AMP,
    energy: Figure | None = None,
    power: Figure | None = None,
    memory: Figure | None = None,
    reserved: Figure | None = None,
    is_memory_sound: bool = True,
) -> LabelScore:
    return LabelScore(
        device="H200",
        family=family,
        batch=4,
        input_size="3x8x8",
        conditions=Conditions(mode=mode, precision=precision),
        is_steady=steady,
        latency=Figure(measured=measured, predicted=predicted, low=0.8 * predicted, high=1.25 * predicted),
        energy=energy,
        power=power,
        memory=memory,
        reserved=reserved,
        is_memory_sound=is_memory_sound,
    )


def label(
    *,
    device: str = "H200",
    outcome: Outcome = Outcome.OK,
    repeat: int = 0,
    latency_ms: float | None = 1.0,
    number: int = 0,
) -> Label:
    recipe = Recipe(
        collection="test",
        family="none",
        architecture="test:no-such-builder",
        arguments={"number": number},
        inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
        batch=2,
    )
    return Label(
        recipe=recipe,
        configuration=Configuration(batch=2, conditions=Conditions()),
        measurement=Measurement(outcome=outcome, device=device, measured_at="", latency_ms=latency_ms),
        repeat=repeat,
    )


def page_of(*scores: LabelScore, left_out: tuple[str, ...] = ()) -> str:
    return render_markdown("t", sections_of(LabelReport(scores=scores, left_out=left_out), command="make it"), {})


def part_of(page: str, start: str, end: str) -> str:
    return page.partition(start)[2].partition(end)[0]


def test_errors_of_the_time() -> None:
    page = page_of(
        score(10, 11),  # +10 %
        score(10, 8),  # -20 %, on the upper end of the interval
        score(10, 16),  # +60 %, not in it
        score(10, 5, steady=False),  # -50 %, not in it
        score(10, 10.5, steady=None, mode=Mode.TRAINING, precision=Precision.FP32),  # +5 %
    )
    time = part_of(page, "## Time\n", "## Energy")
    assert "| all: device counts | 3 | 30.0 | 20.0 | +10.0 | 67 |" in time
    assert "| all: others | 2 | 27.5 | 27.5 | -22.5 | 50 |" in time
    assert "| inference, amp: device counts | 3 | 30.0 | 20.0 | +10.0 | 67 |" in time
    assert "| inference, amp: others | 1 | 50.0 | 50.0 | -50.0 | 0 |" in time
    assert "| training, fp32: others | 1 | 5.0 | 5.0 | +5.0 | 100 |" in time
    assert "training, fp32: device counts" not in page
    assert "5 in number" in page
    assert "In 3 rows the device is what counts" in page
    assert "In the 2 others" in page
    assert "`make it`" in page


def test_errors_of_energy_power_and_memory() -> None:
    page = page_of(
        score(
            10,
            20,
            energy=Figure(measured=5, predicted=9, low=4, high=12),
            power=Figure(measured=500, predicted=450),
            memory=Figure(measured=1000, predicted=900, low=850, high=950),
            reserved=Figure(measured=200, predicted=150),
        ),
        score(10, 10),
    )
    energy, power = part_of(page, "Energy of a call", "Power at"), part_of(page, "Power at", "## Memory")
    assert "| all: device counts | 1 | 80.0 | 80.0 | +80.0 | 100 |" in energy
    assert "| all: device counts | 1 | 10.0 | 10.0 | -10.0 |\n" in power
    memory, reserved = (
        part_of(page, "Memory of the process", "Memory without"),
        part_of(page, "Memory without the", "## Time by"),
    )
    assert "| all: device counts | 1 | 10.0 | 10.0 | -10.0 | 0 |" in memory
    assert "| all: device counts | 1 | 25.0 | 25.0 | -25.0 |\n" in reserved


def test_memory_of_weights_converted_on_the_device_does_not_count() -> None:
    figures = {
        "memory": Figure(measured=1000, predicted=900, low=850, high=950),
        "reserved": Figure(measured=200, predicted=150),
    }
    assert "are no part of these tables" not in page_of(score(10, 20, **figures))
    page = page_of(score(10, 20, **figures, is_memory_sound=False), score(10, 10))
    assert "all: device counts" not in part_of(page, "Memory of the process", "## Time by")
    assert "are no part of these tables, 1 in number" in page
    labels = choose_labels(read_parquet(LABELS))
    predictor = PhysicsPredictor.load()
    first = labels[0]
    graph = read_recipe(first.recipe)
    for layout, precision, measured_at, is_sound in (
        (Layout.NCHW, Precision.AMP, "2026-11-26T01:01:28+00:00", True),
        (Layout.NHWC, Precision.AMP, "2026-11-27T08:30:00+00:00", False),
        (Layout.NCHW, Precision.FP16, "2026-11-27T08:30:00+00:00", False),
        (Layout.NHWC, Precision.AMP, "2026-11-27T10:30:00+00:00", True),
    ):
        conditions = replace(first.configuration.conditions, layout=layout, precision=precision)
        changed = replace(
            first,
            configuration=replace(first.configuration, conditions=conditions),
            measurement=replace(first.measurement, measured_at=measured_at),
        )
        assert score_label(predictor, graph, changed).is_memory_sound is is_sound


def test_families_and_worst_rows_are_of_steady_rows() -> None:
    many = [score(10, 10 + 0.1 * place, family="resnet") for place in range(30)]
    page = page_of(*many, score(10, 4), score(10, 18), score(10, 90, steady=False, family="swin"))
    families = part_of(page, "## Time by family", "## The worst")
    assert "| vgg | 2 | 70.0 | 70.0 | +10.0 | 0 |" in families
    assert "| resnet | 30 |" in families
    assert "swin" not in families
    worst = [
        line for line in part_of(page, "## The worst", "# end").splitlines() if line.startswith(("| vgg", "| res"))
    ]
    # Less than half the time is further off than less than twice the time.
    assert worst[0] == "| vgg | 4 | 3x8x8 | inference | amp | nchw | eager | 10 | 4 | -60.0 |"
    assert worst[1] == "| vgg | 4 | 3x8x8 | inference | amp | nchw | eager | 10 | 18 | +80.0 |"
    assert worst[2] == "| resnet | 4 | 3x8x8 | inference | amp | nchw | eager | 10 | 12.9 | +29.0 |"
    assert len(worst) == 20


def test_interval_ends_hold_and_no_interval_holds_nothing() -> None:
    assert Figure(measured=2, predicted=3, low=2, high=2).is_covered
    assert Figure(measured=2, predicted=3, low=2.1, high=4).is_covered is False
    assert Figure(measured=2, predicted=3).is_covered is None


def test_only_first_measurements_that_ended_well_are_chosen() -> None:
    good = label()
    others = [label(repeat=1), label(outcome=Outcome.NOT_FINITE), label(latency_ms=None)]
    assert choose_labels([*others, good]) == [good]
    with pytest.raises(UsageError) as none:
        choose_labels(others)
    assert none.value.code == "labels.none"
    with pytest.raises(UsageError) as several:
        choose_labels([good, label(device="A100")])
    assert several.value.code == "labels.ambiguous"


def test_models_that_cannot_be_built_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dippm.evaluation.own_labels.build_label_graphs", lambda _labels, _cache, *, jobs: [])
    report = evaluate_labels([label()], GraphCache(tmp_path))
    assert report == LabelReport(scores=(), left_out=("none, batch 2: Its graph is not in the cache.",))
    page = page_of(score(1, 1), left_out=report.left_out)
    assert "1 labels could not be predicted. none, batch 2: Its graph" in page


@pytest.mark.skipif(not LABELS.is_file(), reason="the labels are not here")
@pytest.mark.skipif(any(find_spec(name) is None for name in ("torch", "timm", "pyarrow")), reason="needs timm")
def test_report_of_measured_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_family = [found for found in read_parquet(LABELS) if found.recipe.family == "mobilenet"]
    # The first of them is of a large batch, with its energy; the others wait for their host.
    labels = choose_labels(of_family)[:3]
    cache = GraphCache(tmp_path / "graphs")
    graphs = [read_recipe(each.recipe) for each in labels]
    for each, graph in zip(labels, graphs, strict=True):
        cache.save(each.recipe.model_key, graph, fingerprint=fingerprint(graph))

    first, measured = labels[0], labels[0].measurement
    (expected,) = PhysicsPredictor.load().predict(
        graphs[0],
        batches=[first.recipe.batch],
        devices=[find_device("H200")],
        conditions=first.configuration.conditions,
        software=software_of(measured.software.framework),
    )
    found = score_label(PhysicsPredictor.load(), graphs[0], first)
    low, high = expected.intervals["latency_ms"]
    assert found.latency == Figure(measured=measured.latency_ms, predicted=expected.latency_ms, low=low, high=high)
    assert found.energy is not None
    assert (found.energy.measured, found.energy.predicted) == (measured.energy_j, expected.energy_j)
    assert found.reserved is not None
    assert found.reserved.measured == measured.reserved_peak_mb
    assert expected.memory_mb is not None
    assert found.reserved.predicted == expected.memory_mb - expected.memory_parts_mb["context"]
    assert found.reserved.predicted < 0.95 * expected.memory_mb
    assert found.is_steady
    captured = replace(first.configuration.conditions, runtime=Runtime.CUDA_GRAPH)
    for conditions, scatter, is_steady in (
        (captured, 0.09, True),
        (captured, 0.11, False),
        (replace(captured, runtime=Runtime.EAGER), 0.09, False),
    ):
        scattering = replace(measured, latency_std_ms=scatter * found.latency.measured)
        of_conditions = replace(first.configuration, conditions=conditions)
        label = replace(first, measurement=scattering, configuration=of_conditions)
        assert score_label(PhysicsPredictor.load(), graphs[0], label).is_steady is is_steady
    assert "x".join(str(size) for size in first.recipe.inputs.positional[0].shape) == found.input_size

    again = replace(labels[1], repeat=1)
    path, page = tmp_path / "labels.parquet", tmp_path / "new" / "page.md"
    export_parquet([*labels, again], path)
    monkeypatch.chdir(tmp_path)
    main(["--labels", str(path), "--cache", str(cache.folder), "--report", str(page)])
    text = page.read_text(encoding="utf-8")
    assert "of H200 that ended well, 3 in number" in text
    assert "In 1 rows the device is what counts" in text
    assert f"--report {page}`" in text
    assert f"| mobilenet | {first.recipe.batch} | {found.input_size} | inference | amp |" in text
    assert capsys.readouterr().out.startswith("3 labels predicted, 0 left out")
