from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.errors import DippmError, ModelReadError, UsageError
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.frontends.tensorflow.objects import is_tensorflow_object, save_object


@pytest.mark.parametrize("thing", [None, 7, object(), "name"])
def test_other_things_are_no_models(thing: object) -> None:
    assert not is_tensorflow_object(thing)


class _Fake:
    structured_input_signature = ()
    captured_inputs = ()


def test_classes_are_told_without_importing_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("keras", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert is_tensorflow_object(_Fake())  # a concrete function is known by what it has
    kind = type("Model", (), {})
    assert not is_tensorflow_object(kind())
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(Model=kind))
    assert is_tensorflow_object(kind())


@pytest.mark.parametrize(
    ("given", "error", "code"),
    [(InputShapes(), UsageError, "input.missing"), (parse_input_shapes("4"), ModelReadError, "tensorflow.save_failed")],
)
def test_what_cannot_be_saved_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: InputShapes, error: type[DippmError], code: str
) -> None:
    def function(call: Any) -> Any:
        raise ValueError("cannot be traced\nat all")

    fake = SimpleNamespace(TensorSpec=lambda *_words, **_named: None, float32=None, function=function)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    with pytest.raises(error) as caught:
        save_object(object(), tmp_path, input=given)
    assert caught.value.code == code
    assert "at all" not in str(caught.value)
