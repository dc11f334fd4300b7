"""Which framework a model file belongs to, told by its content; the extension only breaks ties."""

from __future__ import annotations

import zipfile
from enum import StrEnum
from pathlib import Path

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.checkpoint_folder import PIPELINE_NAME, is_checkpoint_config, is_checkpoint_folder, list_parts
from dippm.frontends.graph_file import is_graph_file
from dippm.frontends.paddle.model_files import find_by_prefix, holds_program, is_paddle
from dippm.frontends.tensorflow.wire_format import is_graph_def

__all__ = ["Framework", "detect_framework", "parse_framework"]

_HEAD_BYTES = 4096
_PICKLE_PROTOCOLS = tuple(bytes([0x80, version]) for version in range(2, 6))
_TORCH_MEMBERS = ("data.pkl", "constants.pkl", "serialized_exported_program.json", "archive_format")
# What PyTorch writes beside those.
_TORCH_COMPANIONS = frozenset({"byteorder", "serialization_id", ".format_version", ".storage_alignment"})
_ONNX_TAGS = frozenset({0x08, 0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA})
_ONNX_IR_VERSION_TAG = 0x08
_HIGHEST_IR_VERSION = 64
# A SavedModel begins as an ONNX model of version 1 would; version 3 is the first that was released.
_LOWEST_IR_VERSION = 3
_SAVED_MODEL = "saved_model.pb"
# A checkpoint of TensorFlow is a table of contents, one file or several of numbers, and a file that names the last one.
_TENSORFLOW_INDEX = ".index"
# Its first entry has an empty name.
_TENSORFLOW_INDEX_HEAD = b"\0\0"
_TENSORFLOW_NUMBERS = ".data-?????-of-?????"
_TENSORFLOW_LAST = b"model_checkpoint_path:"
_SAVE_WHOLE = 'Save the whole model with model.save("model.keras"), or as a SavedModel, and give that.'
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_MARK = b'"peft_type"'
_BASE_MODEL = "Give the folder of its base model."
# What people have in a folder that is no model by itself: a file that tells, what it is, and what to give instead.
_KNOWN_FOLDERS = (
    ("*.onnx", "a folder with an ONNX file in it", "Give the .onnx file."),
    (_ADAPTER_CONFIG, "an adapter, which is no model by itself", _BASE_MODEL),
    ("snapshots/*", "a folder of the hub's cache", "Give the folder of a snapshot in it."),
    ("config.json", "a folder whose config.json names no model of transformers, diffusers or timm", "Build the module "
     "with its own library, and give it to dippm.predict."),
    (f"*{_TENSORFLOW_NUMBERS}", "a folder with a checkpoint of TensorFlow, which holds weights alone", _SAVE_WHOLE),
    ("*.safetensors", "a folder of weights alone", "Put the config.json that belongs to them beside them."),
    ("pytorch_model*.bin", "a folder of weights alone", "Put the config.json that belongs to them beside them."),
)  # fmt: skip
_BY_EXTENSION = {".pdmodel": "paddle", ".pb": "tensorflow", ".onnx": "onnx"}


class Framework(StrEnum):
    """Frameworks whose files can be told apart; ``dippm`` stands for a graph that :func:`dippm.save_graph` wrote."""

    ONNX = "onnx"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    PADDLE = "paddle"
    DIPPM = "dippm"


_PATTERN = "It is the shell that fills in patterns: write it without quotes, and see that something matches."
_MISSING = "Check the path; a model by name begins with timm:, torchvision:, hf: or diffusers:, as in timm:resnet50."
_ALIASES = {
    "torch": Framework.PYTORCH,
    "pt": Framework.PYTORCH,
    "tf": Framework.TENSORFLOW,
    "keras": Framework.TENSORFLOW,
}


def parse_framework(name: str) -> Framework:
    """The framework that a user names.

    Raises:
        UsageError: ``framework.unknown``.
    """
    lowered = name.strip().lower()
    if lowered in _ALIASES:
        return _ALIASES[lowered]
    try:
        return Framework(lowered)
    except ValueError as exc:
        raise UsageError(
            f"The framework must be one of {', '.join(Framework)}. Got '{name}' instead.", code="framework.unknown"
        ) from exc


def detect_framework(path: Path) -> Framework:
    """Tell a model file's framework from its first bytes or, for archives, its table of contents.

    Args:
        path: An existing file or folder.

    Raises:
        ModelReadError: ``model.missing``, ``model.empty``, ``model.unreadable``, ``model.weights_only`` for files
            that hold weights without a model, ``model.unrecognised``.
    """
    try:
        if not path.exists():
            # TensorFlow names a checkpoint by what the names of its files begin with.
            if Path(f"{path}{_TENSORFLOW_INDEX}").is_file():
                raise _tensorflow_weights(path)
            program = find_by_prefix(path)
            cure = _PATTERN if any(sign in str(path) for sign in "*?[") else _MISSING
            cure = cure if program is None else f"Give '{program}'."
            raise ModelReadError(f"There is no file '{path}'.", code="model.missing", cure=cure)
        if path.is_dir():
            return _detect_folder(path)
        if not path.is_file():  # opening a pipe waits for its writer
            raise ModelReadError(
                f"'{path}' is a pipe or a device.",
                code="model.unreadable",
                cure="Write the model to a file, and give that.",
            )
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except (OSError, ValueError) as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="model.unreadable") from exc
    if not head:
        raise ModelReadError(f"'{path}' is empty.", code="model.empty", cure="Export the model again.")
    return _detect_head(path, head)


def _detect_folder(path: Path) -> Framework:
    if (path / _SAVED_MODEL).exists():
        return Framework.TENSORFLOW
    if holds_program(path):
        return Framework.PADDLE
    if is_checkpoint_folder(path):
        return Framework.PYTORCH
    if (path / PIPELINE_NAME).exists():
        raise _pipeline(path, folder=path)
    for pattern, what, cure in _KNOWN_FOLDERS:
        if any(path.glob(pattern)):
            raise ModelReadError(f"'{path}' is {what}.", code="model.unrecognised", cure=cure)
    raise ModelReadError(
        f"'{path}' is a folder with no saved_model.pb, no model of Paddle, and no config.json that names a model.",
        code="model.unrecognised",
        cure="Give a model file, a TensorFlow SavedModel folder, the folder that paddle.jit.save wrote to, or that of "
        "a checkpoint of transformers, diffusers or timm.",
    )


def _pipeline(path: Path, *, folder: Path) -> ModelReadError:
    """The error of what names the models of a pipeline; those that lie beside it can be predicted."""
    parts = [f"'{folder / part}'" for part in list_parts(folder)]
    return ModelReadError(
        f"'{path}' is a pipeline of diffusers, which is several models.",
        code="model.unrecognised",
        cure=f"Give one of them at a time: {', '.join(parts)}."
        if parts
        else "Give the folder of one of them, such as its unet or transformer, with the config.json in it.",
    )


def _detect_head(path: Path, head: bytes) -> Framework:
    if head.startswith(b"PK\x03\x04"):
        return _detect_archive(path)
    if is_graph_file(head):
        return Framework.DIPPM
    if is_paddle(path, head):
        return Framework.PADDLE
    if head.startswith(_PICKLE_PROTOCOLS):
        return Framework.PYTORCH
    if head.startswith(b"\x89HDF\r\n\x1a\n") or head[4:8] == b"TFL3":
        return Framework.TENSORFLOW
    if head.startswith(b"GGUF") or (head[8:9] == b"{" and head[4:8] == b"\0\0\0\0"):
        raise ModelReadError(
            f"'{path}' holds weights alone, without the model that uses them.",
            code="model.weights_only",
            cure="Give its folder, if a config.json of transformers, diffusers or timm lies there; else export the "
            "model itself: torch.onnx.export, torch.export.save or torch.jit.save.",
        )
    if _is_of_tensorflow_checkpoint(path, head):
        raise _tensorflow_weights(path)
    if head.lstrip().startswith(b"{"):
        if is_checkpoint_config(path):
            return Framework.PYTORCH
        if path.name == PIPELINE_NAME:
            raise _pipeline(path, folder=path.parent)
        if path.name == _ADAPTER_CONFIG or _ADAPTER_MARK in head:
            raise ModelReadError(
                f"'{path}' describes an adapter, which is no model by itself.",
                code="model.unrecognised",
                cure=_BASE_MODEL,
            )
    if is_graph_def(head) or path.name == _SAVED_MODEL:
        return Framework.TENSORFLOW
    if path.suffix == ".pb" and not _is_onnx(head, lowest_ir_version=_LOWEST_IR_VERSION):
        return Framework.TENSORFLOW
    if path.suffix in _BY_EXTENSION and path.suffix not in (".onnx", ".pb"):
        return Framework(_BY_EXTENSION[path.suffix])
    if (path.suffix == ".onnx" and head[0] in _ONNX_TAGS) or _is_onnx(head):
        return Framework.ONNX
    if path.suffix == ".onnx":
        raise ModelReadError(
            f"'{path}' is named .onnx, but its content is not an ONNX model.",
            code="model.unrecognised",
            cure="Export it again, or give the file that the exporter wrote.",
        )
    raise ModelReadError(
        f"'{path}' is no model file that dippm knows.",
        code="model.unrecognised",
        cure="Give a file of ONNX, PyTorch, TensorFlow, Keras or Paddle that holds a whole model.",
    )


def _is_of_tensorflow_checkpoint(path: Path, head: bytes) -> bool:
    is_index = path.suffix == _TENSORFLOW_INDEX and head.startswith(_TENSORFLOW_INDEX_HEAD)
    return is_index or path.match(f"*{_TENSORFLOW_NUMBERS}") or head.startswith(_TENSORFLOW_LAST)


def _tensorflow_weights(path: Path) -> ModelReadError:
    return ModelReadError(
        f"'{path}' belongs to a checkpoint of TensorFlow, which holds weights alone.",
        code="model.weights_only",
        cure=_SAVE_WHOLE,
    )


def _is_onnx(head: bytes, *, lowest_ir_version: int = 1) -> bool:
    """Whether a file begins as an ONNX model does: with the version of its format and another field."""
    is_long = len(head) > 2 and head[0] == _ONNX_IR_VERSION_TAG
    return is_long and lowest_ir_version <= head[1] < _HIGHEST_IR_VERSION and head[2] in _ONNX_TAGS


def _detect_archive(path: Path) -> Framework:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as exc:
        raise ModelReadError(
            f"'{path}' begins like an archive, but its table of contents cannot be read: {exc}.",
            code="model.truncated",
            cure="The file is cut off or damaged: export or copy it again.",
        ) from exc
    leaves = {name.rsplit("/", 1)[-1] for name in names}
    if leaves.intersection(_TORCH_MEMBERS):
        return Framework.PYTORCH
    if {"config.json", "metadata.json"} <= leaves:
        return Framework.TENSORFLOW
    if leaves & _TORCH_COMPANIONS:
        raise ModelReadError(
            f"'{path}' is an archive of PyTorch that lacks the entry which says what is in it.",
            code="model.truncated",
            cure="The file is incomplete: save or copy it again.",
        )
    raise ModelReadError(
        f"'{path}' is an archive, but of no model format that dippm knows.",
        code="model.unrecognised",
        cure="Unpack it and give the model file inside.",
    )
