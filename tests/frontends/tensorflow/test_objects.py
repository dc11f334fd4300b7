from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.errors import DippmError, ModelReadError, UsageError
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.frontends.tensorflow.objects import _reason, is_tensorflow_object, save_object


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It is\nso.", "It is"),
        ("", "ValueError"),
        ("in user code:\n\n    File a.py, line 9, in call  *\n        a, b = x\n\n    TypeError: too many\n",
         "TypeError: too many"),
        ("in user code:\n\n    ValueError: Exception encountered when calling A.call().\n\n    \x1b[1mNot so.\x1b[0m\n"
         "\n    Arguments received by A.call():\n      x=1\n", "Not so."),
        ("in user code:\n\n    something else\n", "something else"),
    ],
)  # fmt: skip
def test_what_an_error_says_is_told_without_the_lines_of_code(text: str, reason: str) -> None:
    assert _reason(ValueError(text)) == reason


CALLS = """
import json, tempfile
from pathlib import Path
import keras
import tensorflow as tf
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.tensorflow.objects import save_object

class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(5)
    def join(self, a, b):
        return keras.ops.concatenate([self.first(a), self.second(b)], -1)
class AsList(Two):
    def call(self, inputs, training=None):
        a, b = inputs
        return self.join(a, b)
class AsListBesideOthers(Two):
    def call(self, inputs, states=None):
        a, b = inputs
        return self.join(a, b)
class Apart(Two):
    def call(self, a, b):
        return self.join(a, b)
class AsDict(Two):
    def call(self, inputs):
        return self.join(inputs["a"], inputs["b"])
class Module(tf.Module):
    @tf.function
    def __call__(self, inputs):
        a, b = inputs
        return tf.concat([a, b], -1)

apart, named = [(8,), (4,)], {"b": (4,), "a": (8,)}
found = []
for model, given in ((AsList(), apart), (AsListBesideOthers(), apart), (Apart(), apart), (Apart(), named),
                     (AsDict(), named), (AsList(), named), (Module(), apart)):
    with tempfile.TemporaryDirectory() as folder:
        saved = save_object(model, Path(folder), input=parse_input_shapes(given))
        signature = tf.saved_model.load(str(saved.path)).signatures["serving_default"]
    sizes = {name: spec.shape[1] for name, spec in signature.structured_input_signature[1].items()}
    (made,) = signature.structured_outputs.values()
    found.append([type(model).__name__, sizes, made.shape[1]])
print(json.dumps(found))
"""


def test_inputs_are_handed_on_as_a_model_takes_them(run_beside_tensorflow: Callable[[str], Any]) -> None:
    apart, named = {"input_0": 8, "input_1": 4}, {"a": 8, "b": 4}
    assert run_beside_tensorflow(CALLS) == [
        ["AsList", apart, 8], ["AsListBesideOthers", apart, 8], ["Apart", apart, 8], ["Apart", named, 8],
        ["AsDict", named, 8], ["AsList", named, 8], ["Module", apart, 12],
    ]  # fmt: skip
