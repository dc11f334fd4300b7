"""The verb, its files, going on after an interruption, and the way back to a model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import onnx
import pytest

import dippm
from dippm.api.exploration.space import load_space
from dippm.errors import DippmError, MissingExtraError, UsageError
from dippm.predictors.prediction import round_figures

OBJECTIVES = "latency,memory,score:max"


def test_a_front_that_nothing_tried_dominates(space_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = dippm.explore(
        space_file, objectives=OBJECTIVES, trials=40, limits=["score>=100"], device="T4", seed=3, out=out
    )
    assert len(found.trials) == 40
    assert 0 < len(found.front) < 40
    costs = [trial.costs(found.objectives) for trial in found.trials if trial.outcome.values["score"] >= 100]
    for trial in found.front:
        own = trial.costs(found.objectives)
        assert -own[2] >= 100
        assert not any(all(a <= b for a, b in zip(cost, own, strict=True)) and cost != own for cost in costs)
    assert [path.name for path in found.files] == [
        "front.md",
        "front.html",
        "front.json",
        "trade_offs.svg",
        "trials.csv",
    ]
    rows = list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == list(range(40))
    assert {row["status"] for row in rows} <= {"ok", "infeasible"}
    assert sum(bool(row["front"]) for row in rows) == len(found.front)
    answer = json.loads((out / "front.json").read_text())
    assert answer["seed"] == 3
    assert answer["space"]["sha256"] == load_space(space_file).sha256
    assert [point["choices"] for point in answer["front"]] == [trial.choices for trial in found.front]
    assert all(
        "trade_offs.svg" in (out / name).read_text() or name == "front.html" for name in ("front.md", "front.html")
    )
    built = dippm.rebuild(out, 1)
    again = dippm.predict(built.model, device="T4")
    assert again.latency_ms == found.front[0].outcome.values["latency_ms"]


def test_no_more_digits_are_told_than_mean_something(space_file: Path, tmp_path: Path) -> None:
    space_file.write_text(space_file.read_text().replace('return choices["depth"]', 'return 1 / 3 + choices["depth"]'))
    out = tmp_path / "out"
    found = dippm.explore(space_file, objectives=OBJECTIVES, trials=12, out=out)
    rows = list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
    for trial, row in zip(found.trials, rows, strict=True):
        latency = trial.outcome.values["latency_ms"]
        assert float(row["latency_ms"]) == round_figures(latency) != latency
        assert float(row["memory_mb_high"]) == round_figures(trial.outcome.ends("memory_mb")[1])
        assert float(row["score"]) == round_figures(trial.outcome.values["score"], digits=6)
        assert int(row["params"]) == trial.outcome.values["params"]
    point = json.loads((out / "front.json").read_text())["front"][0]
    assert point["score"] == round_figures(found.front[0].outcome.values["score"], digits=6)


def test_the_number_of_jobs_changes_nothing(space_file: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        dippm.explore(space_file, objectives=OBJECTIVES, trials=33, out=tmp_path / str(jobs), jobs=jobs)
    for name in ("trials.csv", "front.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.parametrize("sampler", ["surrogate", "nsga2"])
def test_an_interrupted_run_goes_on_to_the_same_table(space_file: Path, tmp_path: Path, sampler: str) -> None:
    def stop(done: int, _total: int, _remark: str) -> None:
        if done == 36:
            raise KeyboardInterrupt

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    dippm.explore(space_file, objectives=OBJECTIVES, trials=45, sampler=sampler, out=whole)
    with pytest.raises(KeyboardInterrupt):
        dippm.explore(space_file, objectives=OBJECTIVES, trials=45, sampler=sampler, out=cut, on_trial=stop)
    assert not (cut / "trials.csv").exists()
    with pytest.raises(UsageError) as caught:
        dippm.explore(space_file, objectives=OBJECTIVES, trials=45, sampler=sampler, out=cut)
    assert caught.value.code == "explore.unfinished"
    with pytest.raises(UsageError, match="its seed is 0, and now it is 1"):
        dippm.explore(space_file, objectives=OBJECTIVES, trials=45, sampler=sampler, seed=1, out=cut, resume=True)
    predicted: list[int] = []
    dippm.explore(
        space_file, objectives=OBJECTIVES, trials=45, sampler=sampler, out=cut, resume=True,
        on_trial=lambda done, _total, _remark: predicted.append(done),
    )  # fmt: skip
    assert len(predicted) == 45 - 36
    for name in ("trials.csv", "front.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


@pytest.mark.parametrize("sampler", ["surrogate", "tpe"])
def test_more_trials_of_an_exploration_are_those_of_a_longer_one(
    space_file: Path, tmp_path: Path, sampler: str
) -> None:
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    dippm.explore(space_file, objectives=OBJECTIVES, trials=47, sampler=sampler, out=whole)
    dippm.explore(space_file, objectives=OBJECTIVES, trials=23, sampler=sampler, out=grown)
    predicted: list[int] = []
    dippm.explore(
        space_file, objectives=OBJECTIVES, trials=47, sampler=sampler, out=grown, resume=True,
        on_trial=lambda done, _total, _remark: predicted.append(done),
    )  # fmt: skip
    assert 24 <= len(predicted) <= 27
    for name in ("trials.csv", "front.json", "plan.json"):
        assert (whole / name).read_bytes() == (grown / name).read_bytes()
    with pytest.raises(UsageError, match="it has 47 trials, and now 23 are asked for"):
        dippm.explore(space_file, objectives=OBJECTIVES, trials=23, sampler=sampler, out=grown, resume=True)


def test_an_unexpected_error_costs_its_own_trial_alone(
    space_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = dippm.api.prediction.predict, []

    def fail_sometimes(*words: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise AssertionError("out of the blue")
        return real(*words, **named)  # type: ignore[call-overload]

    monkeypatch.setattr("dippm.api.prediction.predict", fail_sometimes)
    found = dippm.explore(space_file, objectives="latency", trials=12, sampler="random", out=tmp_path / "out")
    assert [trial.number for trial in found.trials if trial.outcome.error_code == "internal"] == [3]
    assert len(found.trials) == len(calls) == 12
    again = dippm.explore(
        space_file, objectives="latency", trials=12, sampler="random", out=tmp_path / "out", resume=True
    )
    assert len(calls) == 12
    assert [trial.outcome for trial in again.trials] == [trial.outcome for trial in found.trials]


def test_a_damaged_line_is_predicted_again(space_file: Path, tmp_path: Path) -> None:
    words = {"objectives": OBJECTIVES, "trials": 20, "out": tmp_path / "out"}
    found = dippm.explore(space_file, **words)  # type: ignore[arg-type]
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7][:40] + b"\n"
    journal.write_bytes(b"".join(lines))
    predicted: list[int] = []
    again = dippm.explore(
        space_file, **words, resume=True, on_trial=lambda *_: predicted.append(1)  # type: ignore[arg-type]
    )  # fmt: skip
    assert len(predicted) == 1
    assert [trial.outcome for trial in again.trials] == [trial.outcome for trial in found.trials]
    assert "damaged" in again.warnings[0]


@pytest.mark.parametrize("name", ["predictors", "kernels", "torchvision"])
def test_what_decides_the_figures_must_be_as_it_was(
    space_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words = {"objectives": "latency", "trials": 5, "sampler": "random", "out": tmp_path / "out"}
    found = dippm.explore(space_file, **words)  # type: ignore[arg-type]
    versions = dict(found.plan["versions"])
    monkeypatch.setattr("dippm.api.exploration.explore.find_versions", lambda _: {**versions, name: "another"})
    with pytest.raises(UsageError, match=f"its versions.{name} is .*, and now it is 'another'") as caught:
        dippm.explore(space_file, **words, resume=True)  # type: ignore[arg-type]
    assert caught.value.code == "explore.other_plan"


def test_a_space_made_in_python_is_not_gone_on_with(tmp_path: Path) -> None:
    space = dippm.Space.of({"width": [8, 16]}, lambda _: "timm:resnet18")
    with pytest.raises(UsageError, match="made in Python cannot be gone on with") as caught:
        dippm.explore(space, objectives="latency", trials=2, out=tmp_path / "out", resume=True)
    assert caught.value.code == "explore.settings"
    assert not (tmp_path / "out").exists()


def test_failed_trials_are_rows_and_all_failing_is_an_error(space_file: Path, tmp_path: Path) -> None:
    space_file.write_text(space_file.read_text().replace("10**9", "100"))
    found = dippm.explore(space_file, objectives="latency", trials=20, sampler="random", out=tmp_path / "out")
    line = space_file.read_text().splitlines().index('        raise ValueError("too wide")') + 1
    rows = list(csv.DictReader((tmp_path / "out" / "trials.csv").read_text().splitlines()))
    told = [row["error"].endswith(f"(perceptrons.py, line {line})") for row in rows]
    assert told == [trial.has_failed for trial in found.trials]
    failed = [trial for trial in found.trials if trial.has_failed]
    assert failed
    assert all(int(trial.choices["width"]) > 100 for trial in failed)
    assert not any(trial.has_failed for trial in found.front)
    assert "space.build_failed" in found.warnings[0]
    space_file.write_text(space_file.read_text().replace("TOO_WIDE = 100", "TOO_WIDE = 1"))
    with pytest.raises(DippmError, match="None of the 5 models") as caught:
        dippm.explore(space_file, objectives="latency", trials=5)
    assert caught.value.code == "explore.all_failed"


def test_a_space_of_functions_and_a_limit_that_nothing_keeps() -> None:
    space = dippm.Space.of(
        {"width": [8, 16, 24]},
        lambda chosen: onnx.helper.make_model(
            onnx.helper.make_graph(
                [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
                "net",
                [onnx.helper.make_tensor_value_info("x", 1, ["batch", 8])],
                [onnx.helper.make_tensor_value_info("y", 1, ["batch", chosen["width"]])],
                [onnx.helper.make_tensor("w", 1, (8, chosen["width"]), bytes(32 * int(chosen["width"])), raw=True)],
            ),
            ir_version=9,
            opset_imports=[onnx.helper.make_opsetid("", 20)],
        ),
    )
    found = dippm.explore(space, objectives="latency,params:max", trials=10, limits={"memory": 1})
    assert len(found.trials) == 3
    assert found.front == ()
    assert found.warnings[0].startswith("The search ended after 3 ")
    nearest = min(found.trials, key=lambda trial: trial.outcome.ends("memory_mb")[1])
    memory = round_figures(nearest.outcome.ends("memory_mb")[1])
    assert found.warnings[1:] == (
        f"No trial keeps to all limits. The nearest, trial {nearest.number}, has memory_mb {memory:,g} at its bad end "
        "against memory_mb<=1.",
    )
    points = found.to_dict()["space"]["points"]  # type: ignore[index]
    assert (points, type(points)) == (3, int)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": 0},
        {"trials": 2.5},
        {"trials": "9"},
        {"trials": 100_001},
        {"seed": -1},
        {"seed": 0.5},
        {"resume": True},
        {"objectives": "speed"},
        {"sampler": "x"},
        {"limits": ["x"]},
        {"jobs": 1.5},
    ],
)
def test_wrong_arguments(space_file: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        dippm.explore(space_file, **{"objectives": "latency", **wrong})  # type: ignore[arg-type]


def test_the_plot_is_refused_before_the_search(
    space_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dippm.api.exploration.explore.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"dippm\[explore\]"):
        dippm.explore(space_file, objectives="latency", trials=5, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
