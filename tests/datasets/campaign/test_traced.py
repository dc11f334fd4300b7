from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("torch")
from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.datasets.campaign import traced
from dippm.datasets.campaign.traced import _read_begun, _read_uncapturable, list_tasks, main
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.row import label_to_row, row_to_label
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.operator_run import KernelRun, OperatorRun

CAPTURED = Conditions.parse(precision="amp", runtime="cuda-graph")
CALLS = ({"precision": each} for each in ("amp", "fp32", "fp16", "tf32", "amp-bf16", "bf16"))
CALLS = (*CALLS, {"precision": "amp", "layout": "nhwc"})
STEPS = (*({"precision": each} for each in ("amp", "fp32", "amp-bf16")), {"precision": "amp", "layout": "nhwc"})


def test_every_share_is_among_the_first_and_none_prevails() -> None:
    tasks = list(islice(list_tasks(), 100))
    assert tasks == list(islice(list_tasks(), 100))
    assert len({(recipe.key, conditions) for recipe, conditions in tasks}) == 100
    images = [conditions for recipe, conditions in tasks if recipe.collection != "transformers"]
    steps = [{"mode": "training", "optimizer": "momentum", **more} for more in STEPS]
    assert set(images) == {Conditions.parse(**step) for step in steps} | {
        Conditions.parse(runtime="cuda-graph", **more) for more in CALLS
    }
    assert 0.4 < images.count(CAPTURED) / len(images) < 0.6
    assert all(c.runtime is Runtime.EAGER for _, c in tasks if c.mode is Mode.TRAINING)
    texts = [conditions for recipe, conditions in tasks if recipe.collection == "transformers"]
    assert 4 <= len(texts) <= 12
    assert set(texts) == {
        Conditions.parse(precision="amp-bf16"),
        Conditions.parse(precision="amp-bf16", mode="training", optimizer="adamw"),
    }


def test_each_image_model_comes_once_in_amp() -> None:
    recipes = [recipe for recipe, conditions in list_tasks() if conditions == CAPTURED]
    for name in ("dippm-zoo", "timm-named"):
        assert tuple(recipe for recipe in recipes if recipe.collection == name) == _draw_once(name)
    # They take turns.
    assert {recipe.collection for recipe in recipes[:10:2]} != {recipe.collection for recipe in recipes[1:10:2]}


def test_the_first_recipes_are_passed_over() -> None:
    first = {"dippm-zoo": 7, "timm-named": 3}
    found = [recipe for recipe, conditions in list_tasks(first) if conditions == CAPTURED]
    for name, number in first.items():
        assert [recipe for recipe in found if recipe.collection == name] == list(_draw_once(name)[number:])
    texts = [recipe for recipe, _ in list_tasks({"transformers": 2}) if recipe.collection == "transformers"]
    assert texts[::2] == list(_draw_once("transformers")[2 : 2 + len(texts) // 2])


@pytest.mark.parametrize("given", ["9", "zoo=9", "dippm-zoo", "dippm-zoo=", "dippm-zoo=-1"])
def test_what_to_pass_over_needs_a_collection_and_a_number(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, 1.5, "--first", given)
    assert f"{given!r} is not a collection (timm-named, dippm-zoo, transformers)" in capsys.readouterr().err
    assert not bench.measured


RELU = OperatorRun(
    name="aten::relu",
    input_shapes=((8, 4),),
    scalars=("",),
    is_backward=False,
    kernels=(KernelRun(name="relu", launched_by="aten::relu", start_us=1 / 3, duration_us=2 / 3),),
)
VIEW = OperatorRun(name="aten::view", input_shapes=(), scalars=(), is_backward=False, kernels=())


@dataclass
class FakeBench:
    """Ends every row by a rule, and moves the clock by a second each time."""

    clock: list[float]
    rule: Callable[[Any, Configuration], Outcome] = lambda recipe, configuration: Outcome.OK
    measured: list[tuple[str, str, Conditions]] = field(default_factory=list)
    traced: list[tuple[str, Conditions]] = field(default_factory=list)
    opened: list[tuple[Any, ...]] = field(default_factory=list)
    trace_error: Exception | None = None
    is_usable: bool = True

    def measure(self, source: Any, configurations: Any) -> Iterator[Measurement]:
        for configuration in configurations:
            self.clock[0] += 1.0
            recipe = source.recipe
            self.measured.append((recipe.key, recipe.architecture, configuration.conditions))
            outcome = self.rule(recipe, configuration)
            if outcome is Outcome.FAILED:
                self.is_usable = False
            yield Measurement(
                outcome=outcome,
                device="Test Device",
                measured_at="2026-01-01T00:00:00Z",
                latency_ms=1.0 if outcome is Outcome.OK else None,
            )

    def trace(self, source: Any, configuration: Configuration) -> tuple[OperatorRun, ...]:
        self.traced.append((source.recipe.key, configuration.conditions))
        if self.trace_error is not None:
            raise self.trace_error
        return VIEW, RELU


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    bench = FakeBench(clock=[1000.0])

    def open_bench(*args: Any, **options: Any) -> FakeBench:
        bench.opened.append(args)
        bench.is_usable = True
        return bench

    monkeypatch.setattr(traced, "Bench", open_bench)
    monkeypatch.setattr(traced, "load_collection", _draw_once)
    monkeypatch.setattr(traced.time, "monotonic", lambda: bench.clock[0])
    return bench


_draw_once = functools.cache(load_collection)


def run(folder: Path, budget_s: float, *options: str) -> list[dict[str, Any]]:
    main(["--out", str(folder), "--budget", str(budget_s), *options])
    return read(folder)


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def asked(count: int, first: Mapping[str, int] = MappingProxyType({})) -> list[tuple[str, Conditions]]:
    return [(recipe.key, conditions) for recipe, conditions in islice(list_tasks(first), count)]


def test_rows_until_the_budget_ends(tmp_path: Path, bench: FakeBench) -> None:
    lines = run(tmp_path / "new" / "folder", 4.5, "--energy-share", "0.6")
    ((device, plan),) = bench.opened
    assert (device, plan.energy_share) == ("cuda", 0.6)
    assert [next(iter(line.items())) for line in lines] == [
        (kind, number) for number in range(5) for kind in ("begun", "row")
    ]
    assert [(key, conditions) for key, _, conditions in bench.measured] == bench.traced == asked(5)
    rows = [row_to_label(line) for line in lines if "row" in line]
    assert [(row.recipe.key, row.configuration.conditions) for row in rows] == asked(5)
    assert all(row.configuration.batch == row.recipe.batch for row in rows)
    assert lines[1]["trace"] == [
        ["aten::relu", [[8, 4]], [""], False, [["relu", "aten::relu", 0.333, 0.667]]]
    ]  # what has no kernels is left out
    assert lines[1]["trace_s"] >= 0


def test_it_goes_on_behind_what_was_begun(tmp_path: Path, bench: FakeBench) -> None:
    run(tmp_path, 2.5)
    with (tmp_path / "rows.jsonl").open("a") as stream:
        stream.write('{"begun":3}\n')  # the row that took the process with it
    lines = run(tmp_path, 1.5)
    assert [line["begun"] for line in lines if "begun" in line] == [0, 1, 2, 3, 4, 5]
    assert [line["row"] for line in lines if "row" in line] == [0, 1, 2, 4, 5]
    tasks = asked(6)
    assert [(key, conditions) for key, _, conditions in bench.measured] == tasks[:3] + tasks[4:]
    assert run(tmp_path, -1.0) == lines


def test_a_line_that_was_cut_costs_that_row_alone(tmp_path: Path, bench: FakeBench) -> None:
    run(tmp_path, 0.5)
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text()[:-40])  # killed while it wrote row 0
    bench.rule = _end_the_process
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 10.0)
    assert _read_begun(path) == {0, 1}
    bench.rule = lambda recipe, configuration: Outcome.OK
    main(["--out", str(tmp_path), "--budget", "0.5"])
    assert _read_begun(path) == {0, 1, 2}
    assert [(key, conditions) for key, _, conditions in bench.measured] == asked(3)


def test_first_is_passed_on(tmp_path: Path, bench: FakeBench) -> None:
    run(tmp_path, 2.5, "--first", "dippm-zoo=9", "--first", "timm-named=4", "--device", "cuda:1")
    assert [(key, conditions) for key, _, conditions in bench.measured] == asked(3, {"dippm-zoo": 9, "timm-named": 4})
    assert bench.opened[0][0] == "cuda:1"


def test_what_failed_in_a_capture_runs_eagerly_from_then_on(tmp_path: Path, bench: FakeBench) -> None:
    first, *_ = (recipe for recipe, _ in list_tasks() if recipe.collection == "dippm-zoo")
    bench.rule = lambda recipe, configuration: (
        Outcome.FAILED
        if (recipe.architecture, configuration.conditions.runtime) == (first.architecture, Runtime.CUDA_GRAPH)
        else Outcome.OK
    )
    with pytest.raises(SystemExit, match="start again"):
        run(tmp_path, 200.0)
    before = len(bench.measured)
    assert bench.measured[-1][1] == first.architecture
    assert len(bench.traced) == before - 1
    assert _read_uncapturable(tmp_path / "rows.jsonl") == {first.architecture}
    lines = run(tmp_path, 60.0)
    own = [conditions for _, architecture, conditions in bench.measured[before:] if architecture == first.architecture]
    assert len(own) > 1
    assert {conditions.runtime for conditions in own} == {Runtime.EAGER}
    others = {c.runtime for _, architecture, c in bench.measured if architecture != first.architecture}
    assert others == {Runtime.EAGER, Runtime.CUDA_GRAPH}
    # Rows say how they ran.
    runtimes = {line["runtime"] for line in lines[2 * before :] if line.get("architecture") == first.architecture}
    assert runtimes == {"eager"}


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT])
def test_what_did_not_run_is_not_traced(tmp_path: Path, bench: FakeBench, outcome: Outcome) -> None:
    bench.rule = lambda recipe, configuration: outcome
    lines = run(tmp_path, 0.5)
    assert [line["outcome"] for line in lines if "row" in line] == [outcome]
    assert not bench.traced
    assert _read_uncapturable(tmp_path / "rows.jsonl") == set()


def test_a_row_without_a_trace_is_a_row(tmp_path: Path, bench: FakeBench) -> None:
    bench.trace_error = RuntimeError("no more room")
    lines = run(tmp_path, 1.5)
    rows = [line for line in lines if "row" in line]
    assert [(row["outcome"], row["trace_error"], "trace" in row) for row in rows] == [
        ("ok", "RuntimeError('no more room')", False)
    ] * 2


def test_begun_rows_and_failed_captures_of_a_file_with_a_cut_last_line(tmp_path: Path, make_label: Any) -> None:
    eager = Conditions.parse(precision="amp")
    path = tmp_path / "rows.jsonl"
    assert (_read_begun(path), _read_uncapturable(path)) == (set(), set())
    rows = [
        ("timm:failed", make_label(0, conditions=CAPTURED, outcome=Outcome.FAILED)),
        ("timm:eager", make_label(1, conditions=eager, outcome=Outcome.FAILED)),
        ("timm:large", make_label(2, conditions=CAPTURED, outcome=Outcome.OUT_OF_MEMORY)),
        ("timm:fine", make_label(3, conditions=CAPTURED)),
        ("timm:cut", make_label(4, conditions=CAPTURED, outcome=Outcome.FAILED)),
    ]
    text = ""
    for number, (architecture, label) in enumerate(rows):
        text += json.dumps({"begun": number}) + "\n"
        text += json.dumps({"row": number, **label_to_row(label), "architecture": architecture}) + "\n"
    path.write_text(text[:-20])
    assert _read_begun(path) == {0, 1, 2, 3, 4}
    assert _read_uncapturable(path) == {"timm:failed"}
    path.write_text(text + '{"begun":5}\n{"beg')
    assert _read_begun(path) == {0, 1, 2, 3, 4, 5}
    assert _read_uncapturable(path) == {"timm:failed", "timm:cut"}


def _end_the_process(recipe: Any, configuration: Configuration) -> Outcome:
    raise KeyboardInterrupt
