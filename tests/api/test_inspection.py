import json
from dataclasses import replace
from typing import Any

import pytest

import dippm
from dippm.api.inspection import Inspection, OperatorCost
from dippm.graph import Graph, OpKind


@pytest.fixture(name="inspection")
def _inspection(builder: Any) -> Inspection:
    x = builder.input(builder.N, 64)
    for width in (64, 64):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(width, 64)], builder.N, width)
        x = builder.node(OpKind.VIEW, [x], builder.N, width, alias_of=x)
        x = builder.node(OpKind.RELU, [x], builder.N, width)
    graph: Graph = builder.graph()
    return dippm.inspect(graph, batch=8)


def operator(scope: str, time_ms: float, live_mb: float = 1.0, *, kind: str = "relu") -> OperatorCost:
    return OperatorCost(
        position=0,
        kind=kind,
        source_op="Relu",
        phase="forward",
        scope=scope,
        output_shape=(1,),
        macs=2.0,
        flops=4.0,
        traffic_mb=0.0,
        time_ms=time_ms,
        live_mb=live_mb,
        kernel=0,
    )


def test_modules_hold_the_sums_of_what_is_below(inspection: Inspection) -> None:
    tree = Inspection(
        prediction=inspection.prediction,
        operators=(operator("a.b", 1.0, 5.0), operator("a.c", 2.0, 7.0), operator("", 4.0)),
        weights_mb=0.0,
    ).tree()
    assert (tree.time_ms, tree.macs, tree.peak_mb, tree.operators) == (7.0, 6.0, 7.0, 3)
    seen = replace(inspection, operators=(operator("a", 1.0), operator("a", 0.5, kind="view"))).tree()
    assert (seen.time_ms, seen.operators) == (1.5, 1)
    assert (tree.children["a"].time_ms, tree.children["a"].peak_mb) == (3.0, 7.0)
    assert list(tree.children) == ["a", "(relu)"]
    assert [(depth, module.name) for depth, module in tree.walk()] == [
        (0, ""), (1, "a"), (2, "b"), (2, "c"), (1, "(relu)"),
    ]  # fmt: skip


def test_a_compiled_model_says_what_runs_as_one(builder: Any) -> None:
    x = builder.node(OpKind.LINEAR, [builder.input(builder.N, 64), builder.weight(64, 64)], builder.N, 64)
    x = builder.node(OpKind.GELU, [x], builder.N, 64)
    builder.node(OpKind.MUL, [x], builder.N, 64)
    graph: Graph = builder.graph()
    eager, compiled = (dippm.inspect(graph, batch=512, runtime=runtime) for runtime in ("eager", "compile"))
    assert [each.kernel for each in eager.operators] == [0, 1, 2]
    assert [each.kernel for each in compiled.operators] == [0, 2, 2]
    assert sum(each.time_ms for each in compiled.operators) == pytest.approx(compiled.prediction.latency_ms)
    assert compiled.prediction.latency_ms < eager.prediction.latency_ms


def test_longest_and_largest_come_first(inspection: Inspection) -> None:
    times = [item.time_ms for item in inspection.top_by_time(3)]
    sizes = [item.live_mb for item in inspection.top_by_memory(3)]
    assert times == sorted(times, reverse=True)
    assert sizes == sorted(sizes, reverse=True)


def test_the_whole_of_it_is_json(inspection: Inspection) -> None:
    answer = json.loads(json.dumps(inspection.to_dict()))
    assert answer["schema"] == 1
    assert len(answer["operators"]) == len(inspection.operators)
    assert answer["modules"]["operators"] == len(inspection.operators)


def test_an_inspection_prints_its_prediction_and_the_longest_operators(inspection: Inspection) -> None:
    prediction = inspection.prediction
    lines = str(inspection).splitlines()
    assert lines[:4] == [prediction.title(), *prediction.figure_rows()]
    assert lines[4] == f"  the longest of {len(inspection.operators)} operators:"
    first = inspection.top_by_time(1)[0]
    assert lines[5].split()[0] == first.kind
    assert lines[5].split()[2] == "ms"
    assert len(lines) == 5 + min(5, len(inspection.operators)) + len(prediction.warnings)


def test_the_text_of_a_step_has_its_phases(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    builder.node(OpKind.LINEAR, [x, builder.weight(64, 64)], builder.N, 64)
    text = str(dippm.inspect(builder.graph(), batch=8, mode="training"))
    assert "\n  step = forward " in text
    assert " + optimizer " in text
