"""The kinds of files that TensorFlow writes, told apart by their content."""

from __future__ import annotations

import mmap
import zipfile
from enum import StrEnum
from pathlib import Path

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.tensorflow.lite_file import find_signatures, is_cut_short

__all__ = ["ModelFormat", "check_archive", "check_graph", "check_lite", "find_format", "list_files"]

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_TFLITE = b"TFL3"
_GRAPH_NAME = "saved_model.pb"
_DEFAULT_SIGNATURE = "serving_default"
_MOST_SETTINGS = 64 * 2**20
# Protobuf counts a message's bytes in 31 bits.
_MOST_GRAPH = 2**31 - 1


class ModelFormat(StrEnum):
    """A kind of TensorFlow or Keras file."""

    SAVED_MODEL = "saved_model"
    KERAS = "keras"
    HDF5 = "hdf5"
    GRAPH_DEF = "graph_def"
    TFLITE = "tflite"


def find_format(path: Path) -> ModelFormat:
    """Tell the kind of a model of TensorFlow.

    Args:
        path: A file, a SavedModel folder, or the ``saved_model.pb`` in one.

    Raises:
        ModelReadError: ``model.unreadable``.
    """
    try:
        if path.is_dir():
            return ModelFormat.SAVED_MODEL
        with path.open("rb") as stream:
            head = stream.read(16)
    except OSError as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="model.unreadable") from exc
    if head.startswith(_ZIP):
        return ModelFormat.KERAS
    if head.startswith(_HDF5):
        return ModelFormat.HDF5
    if head[4:8] == _TFLITE:
        return ModelFormat.TFLITE
    return ModelFormat.SAVED_MODEL if path.name == _GRAPH_NAME else ModelFormat.GRAPH_DEF


def list_files(path: Path) -> list[Path]:
    """All files of a model, in a fixed order.

    Raises:
        ModelReadError: ``model.unreadable``.
    """
    if not path.is_dir():
        return [path]
    try:
        found = [path / _GRAPH_NAME, *(path / "variables").rglob("*"), *(path / "assets").rglob("*")]
        return sorted(file for file in found if file.is_file())
    except OSError as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="model.unreadable") from exc


def check_archive(path: Path, *, most_mb: int) -> None:
    """Refuse a ``.keras`` archive that unpacks to more than it may.

    Raises:
        ModelReadError: ``model.truncated``, ``model.too_large``.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            settings = sum(member.file_size for member in archive.infolist() if member.filename.endswith(".json"))
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as exc:
        raise ModelReadError(
            f"'{path}' begins like an archive, but its table of contents cannot be read: {exc}.",
            code="model.truncated",
            cure="The file is cut off or damaged: save or copy it again.",
        ) from exc
    if unpacked > most_mb * 2**20 or settings > _MOST_SETTINGS:
        raise ModelReadError(
            f"'{path}' unpacks to {unpacked / 2**20:,.0f} MiB, {settings / 2**20:,.0f} MiB of them the description of "
            f"its layers; at most {most_mb:,} and {_MOST_SETTINGS // 2**20} MiB are read.",
            code="model.too_large",
            cure="Convert it to ONNX yourself and give the .onnx file.",
        )


def check_graph(path: Path) -> None:
    """Refuse a graph in a file of its own, or the ``saved_model.pb`` of a folder, that no protobuf message can fill.

    Raises:
        ModelReadError: ``model.too_large``, ``model.unreadable``.
    """
    file = path / _GRAPH_NAME if path.is_dir() else path
    try:
        size = file.stat().st_size
    except OSError as exc:
        raise ModelReadError(f"'{file}' cannot be read: {exc}.", code="model.unreadable") from exc
    if size > _MOST_GRAPH:
        raise ModelReadError(
            f"'{file}' is no graph of TensorFlow: it has {size / 2**20:,.0f} MiB, and none is larger than 2,048.",
            code="model.too_large",
            cure="Save the model as a SavedModel folder, which keeps the weights beside the graph.",
        )


def check_lite(path: Path) -> None:
    """Refuse a TensorFlow Lite file that ends before what it refers to, and one of several signatures.

    Raises:
        ModelReadError: ``model.truncated``, ``model.unreadable``.
        UnsupportedError: ``tensorflow.signatures``.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            is_whole = not is_cut_short(view)
            signatures = find_signatures(view) if is_whole else {}
    except OSError as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="model.unreadable") from exc
    if not is_whole:
        raise ModelReadError(
            f"'{path}' is cut short or damaged: it refers to what lies beyond its {path.stat().st_size:,} bytes.",
            code="model.truncated",
            cure="Save or copy it again.",
        )
    # tf2onnx reads the first graph, and the others only as parts of it.
    if len(set(signatures.values())) > 1 and signatures.get(_DEFAULT_SIGNATURE) != 0:
        names = sorted(signatures)
        chosen = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in signatures else names[0]
        raise UnsupportedError(
            f"'{path}' has {len(names)} signatures, of which one is read: {', '.join(names)[:300]}.",
            code="tensorflow.signatures",
            cure="Convert the model again with one of them, such as "
            f"tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=['{chosen}']).",
        )
