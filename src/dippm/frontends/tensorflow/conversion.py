"""From a TensorFlow or Keras model, a file or an object, to what tf2onnx makes of it."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from dippm.errors import MissingExtraError
from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.conversion.limits import ConversionLimits
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.tensorflow.formats import (
    ModelFormat,
    check_archive,
    check_graph,
    check_lite,
    find_format,
    list_files,
)
from dippm.frontends.tensorflow.objects import save_object

__all__ = ["convert_tensorflow"]

_WORKER = "dippm.frontends.tensorflow.worker"
_DISTRIBUTIONS = ("tensorflow", "tf2onnx", "keras", "onnx")


def convert_tensorflow(
    source: Path | object,
    *,
    input: InputShapes,  # noqa: A002 (the word of the public interface)
    trust: bool = False,
    limits: ConversionLimits = ConversionLimits(),  # noqa: B008 - it is frozen
) -> ConvertedModel:
    """Convert a model with tf2onnx.

    Args:
        source: A SavedModel folder, a ``.keras``, ``.h5``, ``.tflite`` or frozen ``.pb`` file, whatever it is called;
            or a Keras model, a ``tf.Module`` or a concrete function, which is saved to a temporary folder first.
        input: Shapes that the caller gave; only a model that does not fix its inputs itself needs them here.
        trust: Whether the file's own Python code, that of ``Lambda`` layers, may run.
        limits: What the converter may take.

    Raises:
        MissingExtraError: TensorFlow or tf2onnx is not installed.
        DippmError: See :func:`dippm.frontends.conversion.convert` and :mod:`dippm.frontends.tensorflow.worker`.
    """
    for package in ("tensorflow", "tf2onnx"):
        if package not in sys.modules and find_spec(package) is None:
            raise MissingExtraError(package=package, extra="tensorflow", purpose="read models of TensorFlow")
    if isinstance(source, Path):
        return _convert_path(source, name=str(source), input=input, trust=trust, limits=limits)
    with tempfile.TemporaryDirectory(prefix="dippm-", ignore_cleanup_errors=True) as folder:
        saved = save_object(source, Path(folder), input=input)
        # Whoever has the object has its code.
        converted = _convert_path(saved.path, name=type(source).__name__, input=input, trust=True, limits=limits)
        return replace(converted, warnings=(*saved.warnings, *converted.warnings))


def _convert_path(
    path: Path,
    *,
    name: str,
    input: InputShapes,  # noqa: A002
    trust: bool,
    limits: ConversionLimits,
) -> ConvertedModel:
    found = find_format(path)
    if found is ModelFormat.SAVED_MODEL and not path.is_dir():
        path = path.absolute().parent
    options: dict[str, object] = {"format": found.value}
    hints: dict[str, object] = {}
    if found is ModelFormat.KERAS:
        check_archive(path, most_mb=limits.output_mb)
    if found in (ModelFormat.GRAPH_DEF, ModelFormat.SAVED_MODEL):
        check_graph(path)
    if found is ModelFormat.TFLITE:
        check_lite(path)
    if found in (ModelFormat.KERAS, ModelFormat.HDF5):
        options["trust"] = trust
        hints["inputs"] = [_describe(name, entry) for name, entry in _named(input)]
    return convert(
        framework="TensorFlow",
        worker=_WORKER,
        source=path,
        files=list_files(path),
        name=name,
        options=options,
        hints=hints,
        packages=_DISTRIBUTIONS,
        limits=limits,
    )


def _named(given: InputShapes) -> list[tuple[str, InputEntry]]:
    if given.named:
        return list(given.named.items())
    return [("", entry) for entry in given.positional]


def _describe(name: str, entry: InputEntry) -> dict[str, object]:
    return {"name": name, "shape": list(entry.shape), "dtype": None if entry.dtype is None else entry.dtype.value}
