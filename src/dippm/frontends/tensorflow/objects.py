"""TensorFlow's and Keras's models in memory, saved so that the converter's process can read them."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.tensorflow.keras_call import call_at_inference
from dippm.frontends.tensorflow.recurrent_layers import layers_kept_whole

__all__ = ["SavedObject", "is_tensorflow_object", "save_object"]


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
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError, NotImplementedError, OSError) as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ModelReadError(
            f"The {type(model).__name__} cannot be saved by its framework: {lines[0][:300]}",
            code="tensorflow.save_failed",
            cure="Save it yourself as a SavedModel and give its folder.",
        ) from exc


def _save(model: Any, path: Path, given: InputShapes) -> SavedObject:
    if _is_keras(model):
        return _save_keras(model, path, given)
    tf = import_module("tensorflow")
    if _is_concrete(model):
        holder = tf.Module()
        holder.kept = list(model.graph.variables)
        tf.saved_model.save(holder, str(path), signatures=model)
    else:
        _save_function(model, model, path, given)
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
            _save_function(model, lambda *tensors: model(*tensors, training=False), path, given)
    return SavedObject(path=path, warnings=masks.warnings)


def _save_call_at_inference(model: Any, path: Path) -> None:
    tf = import_module("tensorflow")
    specs = [tf.TensorSpec(each.shape, each.dtype, name=each.name) for each in model.inputs]
    archive = import_module("keras").export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", call_at_inference(model), input_signature=specs)
    archive.write_out(str(path), verbose=False)


def _save_function(model: Any, call: Any, path: Path, given: InputShapes) -> None:
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
    function = tf.function(call).get_concrete_function(*specs)
    tf.saved_model.save(model, str(path), signatures=function)


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
