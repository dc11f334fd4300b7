from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow.keras_call import call_at_inference


class _Model:
    def __init__(self, own: Any) -> None:
        self.input = own

    def __call__(self, given: Any, *, training: bool) -> tuple[Any, bool]:
        return given, training


@pytest.mark.parametrize(("tensors", "given"), [(("a",), "a"), (("a", "b"), ["a", "b"])])
def test_a_model_is_called_as_it_is_at_inference(tensors: tuple[str, ...], given: object) -> None:
    assert call_at_inference(_Model(list(tensors)))(*tensors) == (given, False)


def test_inputs_of_a_dictionary_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(own: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
        return dict(zip(own, tensors, strict=True))

    keras = SimpleNamespace(tree=SimpleNamespace(pack_sequence_as=pack))
    monkeypatch.setitem(sys.modules, "keras", keras)
    assert call_at_inference(_Model({"a": 0, "b": 1}))("x", "y") == ({"a": "x", "b": "y"}, False)
