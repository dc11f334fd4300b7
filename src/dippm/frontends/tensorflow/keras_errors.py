"""Why Keras cannot open a file, in words that help. Runs in the converter's process."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from dippm.errors import ModelReadError

__all__ = ["explain_keras_error"]

_LAMBDAS = frozenset({"Lambda", "__lambda__"})
_MISSING_CLASS = ("could not locate", "unknown layer", "unknown object", "could not be deserialized", "not registered")
_MISSING_NAME = re.compile(r"(?:could not locate|unknown) \w+:? '(?:[^'>]*>)?([^'>]+)'", re.IGNORECASE)
_LONGEST_REASON = 300


def explain_keras_error(error: Exception, settings: object, path: Path, *, trust: bool) -> ModelReadError | None:
    """What an error of ``keras.models.load_model`` means for the one who has the file.

    Args:
        error: What was raised.
        settings: The file's description of its layers, as JSON has it.
        path: The file.
        trust: Whether Python code in the file was allowed to run.

    Returns:
        ``keras.lambda_refused``, ``keras.not_restorable`` or ``keras.custom_object``; None for any other error.
    """
    if not trust and not _LAMBDAS.isdisjoint(_class_names(settings)):
        return ModelReadError(
            f"'{path.name}' has a Lambda layer, whose Python code would run when the file is opened.",
            code="keras.lambda_refused",
            cure="If you trust the file, say trust=True or --trust-pickle; or give the model as a SavedModel folder.",
        )
    text = str(error)
    if not any(sign in text.lower() for sign in _MISSING_CLASS):
        return None
    match = _MISSING_NAME.search(text)
    if match is not None and match[1] in _operation_names():
        return ModelReadError(
            f"'{path.name}' holds Keras's own operation '{match[1]}', which this form of file cannot give back: Keras "
            "writes it and does not read it.",
            code="keras.not_restorable",
            cure="Save the model as .keras where it was made: model.save('model.keras').",
        )
    if match is None:
        reason = textwrap.shorten(text, _LONGEST_REASON, placeholder=" ...")
        message = f"'{path.name}' needs Python classes that are not in the file: {reason}"
    else:
        message = f"'{path.name}' needs '{match[1]}', Python code that is not in the file."
    return ModelReadError(
        message,
        code="keras.custom_object",
        cure="Export it where that code is, with model.export(folder), and give that folder; or give the model itself.",
    )


def _operation_names() -> set[str]:
    """The classes of Keras's operations that are no layers, such as those that ``mask_zero`` brings in."""
    keras = import_module("keras")
    found: set[str] = set()
    pending = [keras.Operation]
    while pending:
        for kind in pending.pop().__subclasses__():
            if kind.__module__.startswith("keras.") and not issubclass(kind, keras.Layer):
                found.add(kind.__name__)
                pending.append(kind)
    return found


def _class_names(settings: object) -> Iterable[str]:
    pending = [settings]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            name = each.get("class_name")
            if isinstance(name, str):
                yield name
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
