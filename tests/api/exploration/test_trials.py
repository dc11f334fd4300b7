"""One point, built and predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dippm
from dippm.api.exploration.choices import Choices
from dippm.api.exploration.space import Space, load_space
from dippm.api.exploration.trials import Outcome, Terms, evaluate
from dippm.devices import find_device
from dippm.errors import MissingExtraError

POINT: Choices = {"depth": 2, "width": 64, "kind": "Relu", "repeats": 1}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_figures_are_those_of_predict(space_file: Path, mode: str) -> None:
    space, device = load_space(space_file), find_device("A100")
    outcome = evaluate(space, POINT, Terms(device=device, batch=4, options={"mode": mode}))
    expected = dippm.predict(space.build_model(POINT).model, batch=4, device=device, mode=mode)
    values = outcome.values
    assert (values["latency_ms"], values["energy_j"]) == (expected.latency_ms, expected.energy_j)
    assert (values["memory_mb"], values["macs"]) == (expected.memory_mb, expected.macs)
    assert values["params"] == 256 * 64 + 64 * 64
    assert values["score"] == 2 * 64 + 10
    assert outcome.ends("memory_mb") == expected.intervals["memory_mb"]
    assert outcome.ends("params") == (values["params"], values["params"])
    assert values.get("step_time_ms") == expected.step_time_ms
    if mode == "training":
        assert outcome.ends("step_time_ms") == expected.intervals["latency_ms"]
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_a_point_that_fails_is_an_outcome(space_file: Path) -> None:
    space_file.write_text(space_file.read_text().replace("10**9", "32"))
    outcome = evaluate(load_space(space_file), POINT, Terms(device=find_device("A100"), batch=1))
    assert outcome.error_code == "space.build_failed"
    assert "too wide" in outcome.error
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("out of the blue"), "internal"), (SystemExit(3), "internal"), (MemoryError(), "worker.memory")],
)
def test_what_nobody_expects_is_an_outcome(
    space_file: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("dippm.api.prediction.predict", fail)
    outcome = evaluate(load_space(space_file), POINT, Terms(device=find_device("A100"), batch=1))
    assert outcome.error_code == code
    if code == "internal":
        assert outcome.error == f"{type(error).__name__}: {error}"


def test_a_package_that_is_missing_is_no_outcome() -> None:
    def build(_: Choices) -> object:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    space = Space.of({"width": [1, 2]}, build)
    with pytest.raises(MissingExtraError):
        evaluate(space, {"width": 1}, Terms(device=find_device("A100"), batch=1))
