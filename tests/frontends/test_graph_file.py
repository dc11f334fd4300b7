from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.errors import ModelReadError, UsageError
from dippm.frontends import graph_file
from dippm.frontends.detect import Framework, detect_framework
from dippm.frontends.graph_file import is_graph_file, read_graph_file, write_graph_file
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    value = builder.node(
        OpKind.MAX_POOL, [builder.input(builder.N, 3, 8, 8)], builder.N, 3, 4, 4, kernel=(2, 2), stride=(2, 2)
    )
    builder.node(OpKind.RELU, [value], builder.N, 3, 4, 4, releases=(value,))
    return replace(builder.graph(), unsupported_ops={"odd": 2}, warnings=("It is odd.",), has_lifetimes=True)


@pytest.fixture(name="path")
def _path(tmp_path: Path, graph: Graph) -> Path:
    write_graph_file(graph, tmp_path / "net.json.gz")
    return tmp_path / "net.json.gz"


def test_a_graph_is_read_back_under_its_files_name(path: Path, graph: Graph) -> None:
    assert read_graph_file(path) == replace(graph, source=str(path))
    assert open_model(str(path), input=InputShapes()) == replace(graph, source=str(path))


def test_equal_graphs_make_equal_files_and_nothing_else_stays(path: Path, graph: Graph) -> None:
    before = path.read_bytes()
    write_graph_file(graph, path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["net.json.gz"]


def test_the_content_tells_it_by_any_name(path: Path) -> None:
    other = path.rename(path.with_name("net.onnx"))
    assert detect_framework(other) is Framework.DIPPM
    assert open_model(other, input=InputShapes(), framework="dippm").nodes
    with pytest.raises(UsageError) as caught:
        open_model(other, input=InputShapes(), framework="onnx")
    assert caught.value.code == "framework.mismatch"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x1f", id="half a magic number"),
        pytest.param(b"\x1f\x8b", id="magic number alone"),
        pytest.param(gzip.compress(b"a tape archive"), id="another gzip file"),
        pytest.param(b'{"format":1}', id="plain JSON"),
    ],
)
def test_other_files_are_not_taken_for_one(content: bytes) -> None:
    assert not is_graph_file(content)


def test_a_cut_or_damaged_file_is_said(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(12, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelReadError) as caught:
            read_graph_file(path)
        assert caught.value.code == "model.truncated"
    for place in range(10, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(ModelReadError):
            read_graph_file(path)


def test_a_bomb_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "_MOST_BYTES", 2**20)
    path.write_bytes(gzip.compress(b'{"format":1,"graph":"' + bytes(2**24)))
    with pytest.raises(ModelReadError) as caught:
        read_graph_file(path)
    assert caught.value.code == "model.too_large"


Change = Callable[[dict[str, Any]], object]


def _put(where: list[Any], place: Any, value: object) -> None:
    where[place] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.clear(),
        lambda graph: graph.update(tensors=None),
        lambda graph: graph.update(tensors=[[]]),
        lambda graph: graph.update(fixed_batch=0),
        lambda graph: graph.update(fixed_batch="4"),
        lambda graph: graph.update(other_batches=["4"]),
        lambda graph: graph.update(known_batches=4),
        lambda graph: graph.update(smallest_batch="1"),
        lambda graph: graph.update(smallest_batch=None),
        lambda graph: graph.update(proved_batch=-1),
        lambda graph: graph.update(keeps_fp32_parts="no"),
        lambda graph: graph.update(own_gradients=[["f"]]),
        lambda graph: graph.update(own_gradients=[["f", ["0"], [0], [], [], [], [], []]]),
        lambda graph: graph.update(
            own_gradients=[["f", [], [], [], [], [], [], [["relu", [0], [0], {}, "", "", [99]]]]]
        ),
        lambda graph: graph.update(has_lifetimes=1),
        lambda graph: graph.update(warnings=[3]),
        lambda graph: graph.update(unsupported_ops={"odd": -1}),
        lambda graph: graph.update(inputs=["0"]),
        lambda graph: graph.update(framework=None),
        lambda graph: _put(graph["tensors"][0], 0, 7),
        lambda graph: _put(graph["tensors"][0], 1, "NCHW"),
        lambda graph: _put(graph["tensors"][0], 1, [[1, 0, 0]]),
        lambda graph: _put(graph["tensors"][0], 1, [[0, 2.5]]),
        lambda graph: _put(graph["tensors"][0], 1, [[2**50, 0]]),
        lambda graph: _put(graph["tensors"][0], 1, [[-1, 0]]),
        lambda graph: _put(graph["tensors"][0], 1, [[0, 1]] * 200_000),
        lambda graph: _put(graph["tensors"][0], 0, "half of a pair: \ud800"),
        lambda graph: graph.update(warnings=["long " * 1_000_000]),
        lambda graph: graph.update(warnings=["many"] * 1_000),
        lambda graph: _put(graph["nodes"][0], 3, {"mode": "\udfff"}),
        lambda graph: _put(graph["tensors"][0], 2, "float7"),
        lambda graph: _put(graph["tensors"][1], 4, "0"),
        lambda graph: _put(graph["tensors"][1], 5, 1.5),
        lambda graph: _put(graph["nodes"][0], 0, "no_such_kind"),
        lambda graph: _put(graph["nodes"][0], 1, ["0"]),
        lambda graph: _put(graph["nodes"][0], 3, {"kernel": {"a": 1}}),
        lambda graph: _put(graph["nodes"][0], 3, {"kernel": [2, "x"]}),
        lambda graph: _put(graph["nodes"][0], 3, {"lowers_to": "float64"}),
        lambda graph: _put(graph["nodes"][0], 3, {"lowers_to": [1]}),
        lambda graph: _put(graph["nodes"][0], 3, {"lowers_to": True}),
        lambda graph: _put(graph["nodes"][0], 4, None),
        lambda graph: _put(graph["nodes"][1], 6, [99]),
        lambda graph: _put(graph["nodes"][1], 6, [-1]),
        lambda graph: _put(graph["nodes"][1], 1, [99]),
    ],
)
def test_what_no_graph_has_is_refused(path: Path, change: Change) -> None:
    values = json.loads(gzip.decompress(path.read_bytes()))
    change(values["graph"])
    path.write_bytes(gzip.compress(json.dumps(values).encode()))
    with pytest.raises(ModelReadError) as caught:
        read_graph_file(path)
    assert caught.value.code in {"graph_file.invalid", "graph.invalid"}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"format":1}', "graph_file.invalid"),
        (b'{"format":2,"graph":{}}', "graph_file.format"),
        (b'{"format":1,"graph":[]}', "graph_file.invalid"),
        (b'{"format":' + b"[" * 100_000, "graph_file.invalid"),
        (b'{"format":' + b"1" * 10_000 + b"}", "graph_file.invalid"),
        (b'{"format":1,"graph":"\xff"}', "graph_file.invalid"),
    ],
)
def test_foreign_json_is_refused(path: Path, content: bytes, code: str) -> None:
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ModelReadError) as caught:
        read_graph_file(path)
    assert caught.value.code == code


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_graph_file(tmp_path / "none.json.gz")
    assert caught.value.code == "model.unreadable"
