"""Operators on text; TensorFlow itself is not needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow.host_operators import find_host_operators, find_left_over, host_operators_error

TEXT, WHOLE = "string", "int64"


@pytest.fixture(autouse=True)
def _tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(string=TEXT))


def _node(kind: str, inputs: str, outputs: str) -> Any:
    made = [[SimpleNamespace(dtype=each) for each in side.split()] for side in (inputs, outputs)]
    return SimpleNamespace(type=kind, inputs=made[0], outputs=made[1])


def _graph(*nodes: Any) -> Any:
    return SimpleNamespace(get_operations=lambda: list(nodes))


def test_work_on_text_and_tables_is_found_once() -> None:
    graph = _graph(
        _node("Placeholder", "", TEXT),
        _node("StringLower", TEXT, TEXT),
        _node("StringLower", TEXT, TEXT),
        _node("StringSplitV2", f"{TEXT} {TEXT}", f"{WHOLE} {TEXT} {WHOLE}"),
        _node("LookupTableFindV2", f"resource {WHOLE} {WHOLE}", WHOLE),
        _node("MatMul", "float32 float32", "float32"),
    )
    assert find_host_operators(graph) == ["StringLower", "StringSplitV2", "LookupTableFindV2"]


def test_messages_of_assertions_are_no_work() -> None:
    graph = _graph(_node("Const", "", TEXT), _node("Assert", f"bool {TEXT}", ""), _node("Relu", "float32", "float32"))
    assert find_host_operators(graph) == []


def test_what_onnx_has_too_is_not_left_over() -> None:
    converted = SimpleNamespace(get_nodes=lambda: [SimpleNamespace(type=each) for each in ("Reshape", "StringJoin")])
    graph = _graph(*(_node(kind, TEXT, TEXT) for kind in ("Reshape", "StringLower", "StringJoin")))
    assert find_left_over(graph, converted) == ["StringJoin"]


@pytest.mark.parametrize(
    ("nodes", "does", "layer"),
    [
        ([("StringLower", TEXT), ("LookupTableFindV2", TEXT)], "TextVectorization does", "text_vectorization"),
        ([("LookupTableFindV2", TEXT)], "StringLookup does", "string_lookup"),
        ([("LookupTableFindV2", WHOLE)], "IntegerLookup does", "integer_lookup"),
        ([("AsString", WHOLE), ("StringToHashBucketFast", TEXT)], "Hashing does", "hashing"),
        ([("LookupTableFindV2", WHOLE), ("StringToHashBucketFast", TEXT)], "IntegerLookup and Hashing do", "integer"),
    ],
)
def test_the_layer_to_leave_out_is_the_one_that_is_there(nodes: list[tuple[str, str]], does: str, layer: str) -> None:
    graph = _graph(*(_node(kind, read, WHOLE) for kind, read in nodes))
    error = host_operators_error(graph, [kind for kind, _ in nodes])
    assert error.code == "tensorflow.host_operators"
    assert f"as Keras's {does}." in str(error)
    assert f"get_layer('{layer}" in str(error.cure)
