"""The converter of TensorFlow, with what needs TensorFlow left to stand-ins."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.errors import ModelReadError
from dippm.frontends.conversion.worker import ConversionRequest
from dippm.frontends.tensorflow import graph_to_onnx, loading, worker
from dippm.frontends.tensorflow.formats import ModelFormat
from dippm.frontends.tensorflow.loading import FrozenGraph

FROZEN = FrozenGraph(graph_def=None, inputs=["x:0"], outputs=["y:0"])


class Calls:
    """What was called, and the graph that loading gives."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.backends: list[str | None] = []
        self.frozen = FROZEN


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    def load(name: str) -> Any:
        def run(source: Path, **options: object) -> FrozenGraph:
            calls.backends.append(os.environ.get("KERAS_BACKEND"))
            calls.made.append((name, source, options) if options else (name, source))
            return calls.frozen

        return run

    for name in ("load_saved_model", "load_graph_def", "load_keras"):
        monkeypatch.setattr(loading, name, load(name))
    for name in ("convert_tflite", "convert_frozen"):
        monkeypatch.setattr(graph_to_onnx, name, lambda *words, name=name: calls.made.append((name, *words)))
    # Both are put back afterwards.
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr(logging.getLogger("tf2onnx"), "level", logging.DEBUG)
    return calls


def request(folder: Path, kind: ModelFormat, **given: Any) -> ConversionRequest:
    options = {"format": kind.value, **given.pop("options", {})}
    return ConversionRequest(
        source=folder / "model", output=folder, options=options, name="model", reply=folder / "reply.json", **given
    )


@pytest.mark.parametrize(
    ("kind", "loader"), [(ModelFormat.SAVED_MODEL, "load_saved_model"), (ModelFormat.GRAPH_DEF, "load_graph_def")]
)
def test_a_format_has_its_loader_and_what_it_gives_is_converted(
    tmp_path: Path, calls: Calls, kind: ModelFormat, loader: str
) -> None:
    worker.convert(request(tmp_path, kind))
    assert calls.made == [(loader, tmp_path / "model"), ("convert_frozen", FROZEN, tmp_path / "model.onnx")]


@pytest.mark.parametrize("kind", [ModelFormat.KERAS, ModelFormat.HDF5])
@pytest.mark.parametrize("trust", [True, False])
def test_files_of_keras_are_told_whether_to_trust_and_the_inputs(
    tmp_path: Path, calls: Calls, kind: ModelFormat, trust: bool
) -> None:
    inputs = [{"name": "x", "shape": [4], "dtype": None}]
    worker.convert(request(tmp_path, kind, options={"trust": trust}, hints={"inputs": inputs}))
    assert calls.made[0] == ("load_keras", tmp_path / "model", {"trust": trust, "inputs": inputs})
    assert [call[0] for call in calls.made[1:]] == ["convert_frozen"]


def test_a_lite_file_is_converted_as_it_is(tmp_path: Path, calls: Calls) -> None:
    asked = request(tmp_path, ModelFormat.TFLITE)
    worker.convert(asked)
    assert calls.made == [("convert_tflite", tmp_path / "model", tmp_path / "model.onnx")]
    assert (asked.notes.warnings, asked.notes.used_hints) == ([], False)


@pytest.mark.parametrize("used_given_inputs", [True, False])
def test_what_loading_noticed_is_noted(tmp_path: Path, calls: Calls, used_given_inputs: bool) -> None:
    calls.frozen = FrozenGraph(
        graph_def=None, inputs=[], outputs=[], warnings=("A mask is left out.",), used_given_inputs=used_given_inputs
    )
    asked = request(tmp_path, ModelFormat.SAVED_MODEL)
    worker.convert(asked)
    assert (asked.notes.warnings, asked.notes.used_hints) == (["A mask is left out."], used_given_inputs)


def test_keras_runs_on_tensorflow_whatever_the_user_s_other_programs_use(tmp_path: Path, calls: Calls) -> None:
    worker.convert(request(tmp_path, ModelFormat.KERAS, options={"trust": False}, hints={"inputs": []}))
    assert calls.backends == ["tensorflow"]
    assert logging.getLogger("tf2onnx").level == logging.ERROR


def test_an_error_of_loading_goes_on_to_the_caller(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> FrozenGraph:
        raise ModelReadError("It is damaged.", code="model.damaged")

    monkeypatch.setattr(loading, "load_graph_def", fail)
    with pytest.raises(ModelReadError):
        worker.convert(request(tmp_path, ModelFormat.GRAPH_DEF))
    assert calls.made == []


def test_as_a_module_it_answers_the_request_and_needs_no_tensorflow_before_a_model_does(
    tmp_path: Path, answer_of_module: Callable[[str, dict[str, Any]], Any]
) -> None:
    # A package that cannot be imported stands before the one that may be installed.
    for package in ("tensorflow", "keras", "tf2onnx"):
        (tmp_path / f"{package}.py").write_text("raise SystemExit('It is imported.')\n")
    given = {"source": "model", "output": str(tmp_path), "name": "model", "options": {"format": "another"}}
    assert answer_of_module(worker.__name__, given) == {"failure": "ValueError: 'another' is not a valid ModelFormat"}
