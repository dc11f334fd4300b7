import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.evaluation.whole_models import (
    WholeModelReport,
    WholeModelScore,
    evaluate_whole_models,
    main,
    render_markdown,
)
from dippm.graph import Graph, OpKind

_REPORTS = Path(__file__).parents[2] / "docs" / "reports"


def score(*, measured: float, predicted: float, source: str = "a", runtime: Runtime = Runtime.EAGER) -> WholeModelScore:
    return WholeModelScore(
        source=source,
        model="m",
        device="d",
        how=f"inference, fp32, nchw, {runtime}",
        runtime=runtime,
        batch=1,
        measured_ms=measured,
        predicted_ms=predicted,
        low_ms=0.9 * predicted,
        high_ms=1.1 * predicted,
    )


def test_errors_and_coverage() -> None:
    compiled = score(measured=10, predicted=20, source="b", runtime=Runtime.COMPILE)
    report = WholeModelReport(scores=(score(measured=10, predicted=10.5), compiled))
    assert report.mape_percent() == pytest.approx(52.5)
    assert report.mape_percent(runtime=Runtime.COMPILE) == pytest.approx(100.0)
    assert report.mape_percent(source="a") == pytest.approx(5.0)
    assert report.coverage_percent() == 50.0
    assert json.loads(json.dumps(report.to_dict()))["mape_percent"] == 52.5
    page = render_markdown(report)
    assert "| a | m | d | inference, fp32, nchw, eager | 1 | 10 | 10.5 | +5.0 | yes |" in page
    assert "| b | m | d | inference, fp32, nchw, compile | 1 | 10 | 20 | +100.0 | no |" in page


def test_a_training_step_is_evaluated_on_the_graph_of_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, builder: Any, make_label: Callable[..., Label]
) -> None:
    pytest.importorskip("transformers")
    builder.node(OpKind.LINEAR, [builder.input(builder.N, 8), builder.weight(8, 8)], builder.N, 8)
    step = Conditions(mode=Mode.TRAINING, optimizer=Optimizer.SGD)
    read = []

    def read_recipe(_recipe: Recipe, *, mode: Mode) -> Graph:
        read.append(mode)
        graph: Graph = builder.graph()
        return graph

    module = "dippm.evaluation.whole_models"
    monkeypatch.setattr(f"{module}.data_folder", lambda: tmp_path)
    monkeypatch.setattr(f"{module}.import_whole_models", lambda _: [make_label(1), make_label(1, conditions=step)])
    monkeypatch.setattr(f"{module}.read_recipe", read_recipe)
    scores = evaluate_whole_models().scores
    assert read == [Mode.INFERENCE, Mode.TRAINING]
    assert [score.how.split(", ")[0] for score in scores] == ["inference", "training"]


def test_the_page_goes_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = WholeModelReport(scores=(score(measured=10, predicted=10.5),))
    monkeypatch.setattr("dippm.evaluation.whole_models.evaluate_whole_models", lambda: report)
    main(["--report", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == render_markdown(report)


def _summary(page: str) -> dict[str, float]:
    """Mean error of each part of the rows, %."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {row[0]: float(row[2]) for row in cells if len(row) == 4 and row[1].isdecimal()}


@pytest.mark.data
@pytest.mark.slow
def test_the_shipped_predictor_keeps_its_error() -> None:
    pytest.importorskip("transformers")
    report = evaluate_whole_models()
    # Its hosts are slower than the usual one.
    for runtime in (Runtime.EAGER, Runtime.COMPILE):
        assert report.mape_percent(source="huggingface", runtime=runtime) < 20.0
        assert report.mape_percent(source="neusight", runtime=runtime) < 14.0
    assert report.coverage_percent() > 80.0
    committed = _summary((_REPORTS / "whole_models.md").read_text(encoding="utf-8"))
    assert committed == pytest.approx(_summary(render_markdown(report)), abs=0.3)
