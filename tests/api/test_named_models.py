"""Graphs of models by name that are kept between runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from dippm.api import named_models
from dippm.api.named_models import FOLDER_VARIABLE, SHIPPED_FOLDER, SHIPPED_NAMES, read_kept, ship_graph
from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.graph import Graph, OpKind

_NAME = "timm:resnet18"


@pytest.fixture(name="graph")
def _graph(builder) -> Graph:
    return builder.graph(builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(named_models, "SHIPPED_FOLDER", tmp_path / "none")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    return tmp_path


@pytest.fixture(name="read")
def _read(graph: Graph) -> Callable[[], Graph]:
    calls: list[int] = []

    def read() -> Graph:
        calls.append(1)
        return graph

    read.calls = calls  # type: ignore[attr-defined]
    return read


def _ask(read, *, name=_NAME, shapes=None, mode=Mode.INFERENCE, batch_hint=None, precision=Precision.FP32) -> Graph:
    return read_kept(name, read, shapes=shapes or InputShapes(), mode=mode, batch_hint=batch_hint, precision=precision)


def test_a_model_is_read_once(folder, read, graph):
    first, second = _ask(read), _ask(read)
    assert first is graph
    assert second == graph
    assert len(read.calls) == 1
    assert list(folder.rglob("*.json.gz"))


@pytest.mark.parametrize(
    "other",
    [
        {"name": "timm:resnet34"},
        {"mode": Mode.TRAINING},
        {"shapes": parse_input_shapes("3,64,64")},
        {"batch_hint": 4096},
    ],
)
def test_what_is_asked_otherwise_is_read_anew(folder, read, other):
    _ask(read)
    _ask(read, **other)
    assert len(read.calls) == 2


def test_a_batch_at_which_the_kept_graphs_model_goes_another_way_is_read_by_itself(folder, graph):
    calls: list[int] = []
    for batch in (8, 8, 1):
        _ask(lambda batch=batch: calls.append(batch) or replace(graph, other_batches=(1,)), batch_hint=batch)
    assert calls == [8, 1]


@pytest.mark.parametrize(
    ("name", "precision", "reads"),
    [
        ("hf:bert", Precision.BF16, 2),
        ("hf:bert", Precision.AMP, 1),
        ("hf:bert", None, 2),
        (_NAME, Precision.BF16, 1),  # timm's code leaves formats alone
    ],
)
def test_a_model_of_transformers_is_read_for_each_format_of_its_weights(
    folder, read, monkeypatch, name, precision, reads
):
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    _ask(read, name=name)
    _ask(read, name=name, precision=precision)
    assert len(read.calls) == reads


def test_other_versions_are_read_anew(folder, read, monkeypatch):
    _ask(read)
    monkeypatch.setattr(named_models, "_versions", lambda _: {"torch": "0"})
    _ask(read)
    monkeypatch.setattr(named_models, "_state_of_readers", lambda: "changed")
    _ask(read)
    assert len(read.calls) == 3


def test_an_imported_library_may_have_been_changed(folder, read, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", pytest)
    _ask(read)
    _ask(read)
    assert len(read.calls) == 2
    assert not list(folder.rglob("*.json.gz"))


def test_an_empty_variable_keeps_nothing(folder, read, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    _ask(read)
    _ask(read)
    assert len(read.calls) == 2


def test_a_folder_that_cannot_be_written_to_is_no_error(folder, read, monkeypatch, graph):
    (folder / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "file"))
    assert _ask(read) is graph


def test_the_oldest_entries_go(folder, read, monkeypatch):
    monkeypatch.setattr(named_models, "_MOST_ENTRIES", 2)
    for position, name in enumerate(("timm:a", "timm:b", "timm:c")):
        _ask(read, name=name)
        for path in folder.rglob("*.json.gz"):
            if path.stat().st_mtime_ns > 10**18:
                os.utime(path, ns=(position, position))
    assert len(list(folder.rglob("*.json.gz"))) == 2
    _ask(read, name="timm:c")
    assert len(read.calls) == 3


_SCRIPT = """
import json, sys
import dippm
graph = dippm.load("timm:test_vit", mode=sys.argv[1])
print(json.dumps([len(graph.nodes), graph.source, "torch" in sys.modules]))
"""


def test_the_second_run_imports_no_framework(tmp_path):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")

    def run(mode: str) -> list[object]:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, mode],
            env={**os.environ, FOLDER_VARIABLE: str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    first, second = run("training"), run("training")
    assert first[:2] == second[:2]
    assert (first[2], second[2]) == (True, False)


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_graph_that_comes_with_the_package_is_what_the_library_builds(name, monkeypatch):
    library = name.partition(":")[0]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    from dippm.frontends.open_model import open_model
    from dippm.graph.fingerprint import fingerprint

    monkeypatch.setenv(FOLDER_VARIABLE, "")
    for mode in Mode:
        with monkeypatch.context() as context:
            context.delitem(sys.modules, library, raising=False)
            shipped = _ask(pytest.fail, name=name, mode=mode)
        fresh = open_model(name, input=InputShapes(), mode=mode)
        assert fingerprint(shipped) == fingerprint(fresh), "run python scripts/ship_named_graphs.py"
        assert shipped.warnings == fresh.warnings


def test_shipped_graphs_are_for_one_version_of_the_library(read, graph, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(named_models, "SHIPPED_FOLDER", tmp_path)
    ship_graph(_NAME, graph, mode=Mode.INFERENCE, folder=tmp_path)
    shipped = replace(graph, proved_batch=4096)
    assert _ask(pytest.fail) == shipped
    assert _ask(read, mode=Mode.TRAINING) is graph
    assert _ask(read, shapes=parse_input_shapes("3,32,32")) is graph
    assert _ask(pytest.fail, batch_hint=4096) == shipped
    assert _ask(read, batch_hint=4097) is graph
    monkeypatch.setattr(named_models, "version", lambda _name: "0.0")
    assert _ask(read) is graph
    assert len(read.calls) == 4


def test_the_package_has_all_shipped_graphs():
    assert len(list(SHIPPED_FOLDER.glob("??/*.json.gz"))) == len(SHIPPED_NAMES) * len(Mode)


def test_a_kept_graph_does_not_outlive_a_change_of_the_tables_of_checkpoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dippm.frontends.__path__", [str(tmp_path)])
    states = set()
    for content in ("", "quantization = {}"):
        (tmp_path / "hf_checkpoints.toml").write_text(content, encoding="utf-8")
        states.add(named_models._state_of_readers.__wrapped__())
    assert len(states) == 2
