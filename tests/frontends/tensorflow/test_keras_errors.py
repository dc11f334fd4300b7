"""What Keras says, and what its user is told; Keras itself is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dippm.frontends.tensorflow.keras_errors import explain_keras_error

NEWER = (
    "<class 'keras.src.models.functional.Functional'> could not be deserialized properly. Please ensure that "
    "components are explicitly deserialized.\n\nException encountered: Could not locate class '{name}'. Make sure "
    "custom classes and functions are decorated with `@keras.saving.register_keras_serializable()`."
)
OLDER = (
    "Unknown layer: '{name}'. Please ensure you are using a `keras.utils.custom_object_scope` and that this object is "
    "included in the scope. See https://www.tensorflow.org/guide/keras/save_and_serialize#registering_the_custom_object"
)
FUNCTION = "Could not locate function '{name}'. Make sure custom classes and functions are decorated."


@pytest.fixture(autouse=True)
def _keras(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = type("Operation", (), {"__module__": "keras.src.ops.operation"})
    layer = type("Layer", (operation,), {"__module__": "keras.src.layers.layer"})
    own = {
        "NotEqual": type("NotEqual", (operation,), {"__module__": "keras.src.ops.numpy"}),
        "Scale": type("Scale", (operation,), {"__module__": "mine"}),
        "Dense": type("Dense", (layer,), {"__module__": "keras.src.layers.core"}),
    }
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(Operation=operation, Layer=layer, kept=own))


@pytest.mark.parametrize("text", [NEWER, OLDER, FUNCTION])
@pytest.mark.parametrize("name", ["MyScale", "mine>MyScale"])
def test_the_class_that_is_missing_is_named(text: str, name: str) -> None:
    found = explain_keras_error(ValueError(text.format(name=name)), {}, Path("a/model.keras"), trust=False)
    assert found is not None
    assert found.code == "keras.custom_object"
    assert str(found).startswith("'model.keras' needs 'MyScale', Python code that is not in the file.")
    assert "http" not in str(found)


@pytest.mark.parametrize(("name", "code"), [("NotEqual", "keras.not_restorable"), ("Scale", "keras.custom_object")])
def test_an_operation_of_keras_is_not_called_the_users(name: str, code: str) -> None:
    found = explain_keras_error(ValueError(OLDER.format(name=name)), {}, Path("model.h5"), trust=False)
    assert found is not None
    assert found.code == code
    assert f"'{name}'" in str(found)


def test_a_reason_without_a_name_is_cut_between_words() -> None:
    words = "could not be deserialized " + "lengthily " * 100
    found = explain_keras_error(TypeError(words), {}, Path("model.keras"), trust=False)
    assert found is not None
    reason = str(found).partition(" ...")[0]
    assert reason.endswith("lengthily")


def test_code_in_the_file_comes_first_unless_it_is_trusted() -> None:
    settings = {"config": {"layers": [{"class_name": "Lambda"}]}}
    error = ValueError(OLDER.format(name="MyScale"))
    codes = []
    for trust in (False, True):
        found = explain_keras_error(error, settings, Path("model.keras"), trust=trust)
        codes.append(None if found is None else found.code)
    assert codes == ["keras.lambda_refused", "keras.custom_object"]


def test_other_errors_are_not_explained() -> None:
    assert explain_keras_error(ValueError("no such file"), {}, Path("model.keras"), trust=False) is None
