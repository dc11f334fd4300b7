"""From a path, bytes or a ModelProto to a ModelProto without weights."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import ModelReadError
from dippm.frontends.onnx.skeleton import extract_skeleton

if TYPE_CHECKING:
    import onnx

__all__ = ["load_model"]

_PARSED_WHOLE_BYTES = 2 * 1024 * 1024
_EXPORT_CURE = 'Export it first, for example with torch.onnx.export(model, inputs, "model.onnx").'


def load_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str, Path | None]:
    """Read a model's structure.

    Args:
        source: A path, the file's bytes, or a parsed model.

    Returns:
        The model without bulky payloads, its name for messages, and the folder of its external data.

    Raises:
        ModelReadError: ``onnx.missing``, ``onnx.empty``, ``onnx.truncated``, ``onnx.damaged``, ``onnx.not_onnx``.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        return source, source.graph.name or "onnx model", None
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(memoryview(source).cast("B"), "onnx bytes"), "onnx bytes", None
    path = Path(source)
    return _load_file(path), str(path), path.parent


def _load_file(path: Path) -> onnx.ModelProto:
    try:
        if path.is_dir():
            raise ModelReadError(
                f"'{path}' is a folder.", code="onnx.not_a_file", cure="Give the .onnx file inside it."
            )
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelReadError(f"'{path}' is empty.", code="onnx.empty", cure="Export the model again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                return _parse(view, f"'{path}'")
    except FileNotFoundError as exc:
        raise ModelReadError(
            f"'{path}' does not exist.", code="onnx.missing", cure="Check the path and the working directory."
        ) from exc
    except (OSError, ValueError) as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="onnx.unreadable") from exc


def _parse(view: memoryview, name: str) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

    if len(view) == 0:
        raise ModelReadError(f"{name}: there are no bytes.", code="onnx.empty", cure="Export the model again.")
    _refuse_other_formats(bytes(view[:512]), name)
    data = bytes(view) if len(view) <= _PARSED_WHOLE_BYTES else extract_skeleton(view)
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as exc:
        if len(view) <= _PARSED_WHOLE_BYTES:
            extract_skeleton(view)  # says more exactly what is wrong with the bytes
        raise ModelReadError(
            f"{name} is damaged or no ONNX model: protobuf cannot read it.",
            code="onnx.damaged",
            cure="Copy or export the file again.",
        ) from exc
    if not model.HasField("graph") or not (model.ir_version or model.opset_import):
        raise ModelReadError(f"{name} is no ONNX model: it holds no graph.", code="onnx.not_onnx", cure=_EXPORT_CURE)
    return model


def _refuse_other_formats(head: bytes, name: str) -> None:
    text = head.lstrip().lower()
    found = None
    if head.startswith(b"PK\x03\x04"):
        found = "a zip archive, such as a PyTorch checkpoint or a .pt2 program"
    elif head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        found = "a Python pickle, such as an old PyTorch checkpoint"
    elif head.startswith(b"\x89HDF\r\n"):
        found = "an HDF5 file, such as a Keras model"
    elif text.startswith((b"<!doctype", b"<html", b"<?xml")):
        found = "a web page or XML file"
    elif head.startswith(b"version https://git-lfs"):
        found = "a Git LFS pointer; fetch the file itself with `git lfs pull`"
    elif head[4:8] == b"TFL3":
        found = "a TensorFlow Lite model"
    elif head[4:8] == b"ORTM":
        found = "an onnxruntime ORT-format model"
    elif head[8:10] == b'{"' or text.startswith((b'{"', b"{\n")):
        found = "a JSON or safetensors file"
    elif head.startswith(b"\x1f\x8b"):
        found = "a gzip archive"
    if found is not None:
        raise ModelReadError(f"{name} is no ONNX model but {found}.", code="onnx.not_onnx", cure=_EXPORT_CURE)
