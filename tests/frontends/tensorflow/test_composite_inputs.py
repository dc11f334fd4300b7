"""Sparse and ragged inputs told; TensorFlow itself is not needed, ``test_conversion.py`` has real models."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.errors import UnsupportedError
from dippm.frontends.tensorflow.composite_inputs import check_operators, check_signature


class SparseTensorSpec:
    shape = (None, 32)


class RaggedTensorSpec:
    shape = (None, None)


class TensorSpec:
    shape = (None, 4)


@pytest.fixture(autouse=True)
def _tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = SimpleNamespace(flatten=lambda whole: [each for one in whole for each in one])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(nest=flat))


def _function(*specs: object, called: str = "inner") -> Any:
    parameters = {"x": SimpleNamespace(type_constraint=list(specs))}
    inner = SimpleNamespace(function_type=SimpleNamespace(parameters=parameters))
    call = SimpleNamespace(type="PartitionedCall", get_attr=lambda _: SimpleNamespace(name=called))
    others = SimpleNamespace(type="Placeholder")
    return SimpleNamespace(graph=SimpleNamespace(get_operations=lambda: [others, call], _functions={"inner": inner}))


@pytest.mark.parametrize(("spec", "kind"), [(SparseTensorSpec(), "sparse"), (RaggedTensorSpec(), "ragged")])
def test_a_signature_is_known_by_what_it_calls(spec: Any, kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"a {kind} tensor of shape") as caught:
        check_signature(_function(TensorSpec(), spec))
    assert caught.value.code == f"tensorflow.{kind}_input"
    assert "dense input" in str(caught.value.cure)
    check_signature(_function(TensorSpec()))
    check_signature(_function(spec, called="another"))  # a function that is not called by it


def _graph(*nodes: tuple[str, str, list[str]]) -> Any:
    return SimpleNamespace(node=[SimpleNamespace(name=name, op=op, input=read) for name, op, read in nodes])


INPUTS = (("x", "Placeholder", []), ("w", "Const", []), ("same", "Identity", ["x:0"]), ("made", "Where", ["x"]))


@pytest.mark.parametrize("source", ["x", "same:0"])
def test_operators_that_read_parts_from_inputs_are_refused(source: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_operators(_graph(*INPUTS, ("y", "SparseTensorDenseMatMul", [source, "w", "w", "w"])))
    assert caught.value.code == "tensorflow.sparse_input"
    with pytest.raises(UnsupportedError) as caught:
        check_operators(_graph(*INPUTS, ("y", "RaggedTensorToTensor", ["w", "w", "w", source])))
    assert caught.value.code == "tensorflow.ragged_input"


def test_sparse_tensors_that_the_model_makes_itself_are_none_of_these() -> None:
    check_operators(_graph(*INPUTS, ("y", "SparseToDense", ["made", "w", "x", "w"]), ("z", "MatMul", ["x", "w"])))
