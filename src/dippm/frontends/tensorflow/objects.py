"""TensorFlow's and Keras's models in memory, saved so that the converter's process can read them."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.tensorflow.keras_call import call_at_inference
from dippm.frontends.tensorflow.recurrent_layers import layers_kept_whole

__all__ = ["SavedObject", "is_tensorflow_object", "save_object"]

_FAILURES = (ValueError, TypeError, RuntimeError, AttributeError, KeyError, NotImplementedError, OSError)
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): ")
_BOLD = re.compile(r"\x1b\[\d*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedObject:
    """A model on disk.

    Args:
        path: The file or folder that holds it.
        warnings: What was left out of it, in words for the user.
    """

    path: Path
    warnings: tuple[str, ...] = ()


def is_tensorflow_object(model: object) -> bool:
    """Whether an object is a Keras model, a ``tf.Module`` or a concrete function. Imports nothing."""
    return _is_keras(model) or _is_of(model, "tensorflow", "Module") or _is_concrete(model)


def save_object(model: object, folder: Path, *, input: InputShapes) -> SavedObject:  # noqa: A002
    """Save a model.

    Args:
        model: A Keras model, a ``tf.Module`` or a concrete function.
        folder: An empty folder to save it in.
        input: Shapes of one sample, needed where the model does not know its inputs itself.

    Raises:
        UsageError: ``input.missing`` where shapes are needed.
        ModelReadError: ``tensorflow.save_failed`` where the framework cannot save it.
    """
    path = folder / "model"
    try:
        # Frameworks print what they save.
        with contextlib.redirect_stdout(io.StringIO()):
            return _save(model, path, input)
    except _FAILURES as exc:
        raise ModelReadError(
            f"The {type(model).__name__} cannot be saved by its framework: {_reason(exc)[:300].rstrip('.')}.",
            code="tensorflow.save_failed",
            cure="Save it yourself as a SavedModel and give its folder.",
        ) from exc


def _reason(error: Exception) -> str:
    """What an exception says, without the lines of code that TensorFlow lists and the arguments that Keras does."""
    lines = [line for line in (_BOLD.sub("", each).strip() for each in str(error).splitlines()) if line]
    if lines and lines[0] == "in user code:":
        raised = [place for place, line in enumerate(lines) if _RAISED.match(line)]
        lines = lines[raised[-1] if raised else -1 :]
    if len(lines) > 1 and "Exception encountered when calling" in lines[0]:
        del lines[0]
    return lines[0] if lines else type(error).__name__


def _save(model: Any, path: Path, given: InputShapes) -> SavedObject:
    if _is_keras(model):
        return _save_keras(model, path, given)
    tf = import_module("tensorflow")
    if _is_concrete(model):
        holder = tf.Module()
        holder.kept = list(model.graph.variables)
        tf.saved_model.save(holder, str(path), signatures=model)
    else:
        _save_function(model, list(_calls(model, model.__call__ if callable(model) else None, given)), path, given)
    return SavedObject(path=path)


def _save_keras(model: Any, path: Path, given: InputShapes) -> SavedObject:
    if _knows_inputs(model) and _keras_backend(model) != "tensorflow":
        # Another backend's program is of no use to tf2onnx; the layers are.
        file = path.with_suffix(".keras")
        model.save(file)
        return SavedObject(path=file)
    with layers_kept_whole(model) as masks:
        if _knows_inputs(model) and not _is_of(model, "tf_keras", "Model"):
            _save_call_at_inference(model, path)
        elif _knows_inputs(model):
            model.export(str(path), verbose=False)
        else:
            calls = list(_calls(lambda *words, **named: model(*words, **named, training=False), model.call, given))
            _save_function(model, calls, path, given)
    return SavedObject(path=path, warnings=masks.warnings)


def _save_call_at_inference(model: Any, path: Path) -> None:
    tf = import_module("tensorflow")
    specs = [tf.TensorSpec(each.shape, each.dtype, name=each.name) for each in model.inputs]
    archive = import_module("keras").export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", call_at_inference(model), input_signature=specs)
    archive.write_out(str(path), verbose=False)


def _save_function(model: Any, calls: Sequence[Callable[..., Any]], path: Path, given: InputShapes) -> None:
    """Save the first of these calls that can be traced."""
    tf = import_module("tensorflow")
    if given.is_empty:
        raise UsageError(
            f"The {type(model).__name__} does not say what it takes.",
            code="input.missing",
            cure="Give the shapes of one sample in the order of its arguments, such as input=(224, 224, 3).",
        )
    entries = list((given.named or {}).items()) or [(f"input_{i}", each) for i, each in enumerate(given.positional)]
    if len(entries) == 1 and not given.named:
        entries = [("input", entries[0][1])]
    specs = [_spec(tf, name, entry) for name, entry in entries]
    function = _trace(tf, calls, specs)
    kept = model
    if _is_keras(model):
        # Keras would trace a model that is saved once more, with one argument.
        kept = tf.Module()
        tables = [each.lookup_table for each in model._flatten_layers() if hasattr(each, "lookup_table")]
        kept.kept = [*function.graph.variables, *tables]
    tf.saved_model.save(kept, str(path), signatures=function)


def _trace(tf: Any, calls: Sequence[Callable[..., Any]], specs: Sequence[Any]) -> Any:
    first: Exception | None = None
    for call in calls:
        try:
            with warnings.catch_warnings():
                if call is not calls[-1]:
                    warnings.simplefilter("ignore")
                return tf.function(call).get_concrete_function(*specs)
        except _FAILURES as exc:
            first = first or exc
    raise first or TypeError("it takes no inputs like these")


def _calls(call: Callable[..., Any], described: Any, given: InputShapes) -> Iterator[Callable[..., Any]]:
    """Ways to hand tensors to a model: as arguments by name, one by one, or all as one argument.

    Args:
        call: Takes what the model does.
        described: What the model's arguments are named by.
        given: What the tensors are, in their order.
    """
    names = list(given.named or {})
    count = len(names or given.positional)
    try:
        signature = inspect.signature(described)
    except (TypeError, ValueError):
        signature = inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])
    if names and _binds(signature, 0, names):
        yield lambda *tensors: call(**dict(zip(names, tensors, strict=True)))
    if _binds(signature, count):
        yield lambda *tensors: call(*tensors)
    if names and _binds(signature, 1):
        yield lambda *tensors: call(dict(zip(names, tensors, strict=True)))
    if count > 1 and _binds(signature, 1):
        yield lambda *tensors: call(list(tensors))
    if not _binds(signature, count) and not _binds(signature, 1):
        yield lambda *tensors: call(*tensors)


def _binds(signature: inspect.Signature, count: int, names: Sequence[str] = ()) -> bool:
    """Whether so many arguments, and those of these names, are what a function takes beside ``training``."""
    try:
        signature.bind_partial(training=False)
        named = {"training": False}
    except TypeError:
        named = {}
    try:
        signature.bind(*range(count), **dict.fromkeys(names), **named)
    except TypeError:
        return False
    return True


def _spec(tf: Any, name: str, entry: InputEntry) -> Any:
    dtype = "float32" if entry.dtype is None else entry.dtype.value
    return tf.TensorSpec((None, *entry.shape), dtype=getattr(tf, dtype), name=name)


def _knows_inputs(model: Any) -> bool:
    return bool(getattr(model, "inputs", None))


def _keras_backend(model: Any) -> str:
    if type(model).__module__.startswith("tf_keras") or _is_of(model, "tf_keras", "Model"):
        return "tensorflow"
    return str(import_module("keras").backend.backend())


def _is_keras(model: object) -> bool:
    return _is_of(model, "keras", "Model") or _is_of(model, "tf_keras", "Model")


def _is_concrete(model: object) -> bool:
    return hasattr(model, "structured_input_signature") and hasattr(model, "captured_inputs")


def _is_of(model: object, package: str, name: str) -> bool:
    """Whether an object is of a class of a package that is imported already: nothing else can be."""
    found = getattr(sys.modules.get(package), name, None)
    return isinstance(found, type) and isinstance(model, found)
