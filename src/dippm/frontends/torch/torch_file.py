"""Reads the files that PyTorch writes, told apart by what they hold and not by their names."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dippm.costs.conditions import Mode
from dippm.errors import ModelReadError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.frontends.torch.archive import open_archive, read_entry
from dippm.frontends.torch.exported_file import is_exported_archive, read_exported_file
from dippm.frontends.torch.pickle_scan import PickleScan, scan_pickles
from dippm.frontends.torch.reader import read_module
from dippm.frontends.torch.script_file import is_script_archive, read_script_file
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops
from dippm.frontends.trace_of_training import check_training
from dippm.graph import Graph

__all__ = ["load_pickled", "read_torch_file"]

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
# Before the object itself, the old format of torch.save has a magic number, a version and a description, each a pickle.
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_PICKLES = 4
_RECORD_MISSING = "PytorchStreamReader failed locating file"
_OF_SCRIPTS = "__main__."
_TORCHVISION_USERS = frozenset({"torchvision", "timm", "transformers"})


def read_torch_file(
    path: str | Path,
    *,
    input: InputShapes,  # noqa: A002
    trust: bool = False,
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read a TorchScript archive, a ``torch.export`` archive, or, if trusted, a pickled module.

    A TorchScript archive is code, and it runs: on tensors that have shapes and no data, without operators that open
    files, and not for more operators than a model has. A loop without any tensor operator is not bounded in time; read
    files that you do not trust in a process of their own that can be ended. A ``torch.export`` archive is data.

    Args:
        path: The file.
        input: Shapes of one sample; may be empty for a ``torch.export`` archive.
        trust: Whether a pickle may be unpickled, which runs whatever code it names.
        mode: See :func:`dippm.frontends.torch.reader.read_module`. A traced or exported program is read as it is: a
            warning says where nothing in it belongs to training.
        batch_hint: The batch size to read at where the model cannot be read for every batch size.

    Raises:
        ModelReadError: ``model.not_found``, ``model.empty``, ``model.truncated``, ``model.too_large``;
            ``torch.not_recognised``; ``torch.pickle_refused`` for a pickled module without trust;
            ``torch.state_dict`` for weights without a model; ``torch.archive_bomb``, ``torch.script_refused`` and
            ``torch.file_operator`` for files made to do harm.
        UsageError: where the inputs do not fit the model.
        UnsupportedError: see :func:`dippm.frontends.torch.reader.read_module`.
    """
    with PROCESS_LOCK:
        return _read(Path(path), input=input, trust=trust, mode=mode, batch_hint=batch_hint)


def _read(
    path: Path,
    *,
    input: InputShapes,  # noqa: A002
    trust: bool,
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    if _first_bytes(path).startswith(_ZIP):
        with open_archive(path) as archive:
            names = archive.namelist()
            if is_exported_archive(names):
                exported = read_exported_file(archive, path=path, input=input, mode=mode, batch_hint=batch_hint)
                return check_training(exported, mode)
            if is_script_archive(names):
                script = read_script_file(archive, path=path, input=input, mode=mode, batch_hint=batch_hint)
                return check_training(script, mode)
    module = load_pickled(path, trust=trust)
    return read_module(module, input=input, source=str(path), mode=mode, batch_hint=batch_hint)


def load_pickled(path: Path, *, trust: bool) -> nn.Module:
    """Load a pickled module.

    Args:
        path: A file that is no archive of TorchScript or ``torch.export``.
        trust: Whether it may be unpickled, which runs code that the file chooses.

    Raises:
        ModelReadError: As :func:`read_torch_file`.
    """
    start = _first_bytes(path)
    if start.startswith(_ZIP):
        with open_archive(path) as archive:
            scan = _scan_archive(archive, archive.namelist())
        if scan is None:
            raise _not_recognised(path)
    elif start.startswith(_PICKLE):
        with path.open("rb") as stream:
            scan = scan_pickles(stream, count=_LEGACY_PICKLES if start.startswith(_LEGACY_START) else 1)
    elif len(start) > 9 and start[8:9] == b"{" and 0 < int.from_bytes(start[:8], "little") < path.stat().st_size:
        raise _state_dict(path, "safetensors")
    else:
        raise _not_recognised(path)
    _check_pickle(path, scan, trust=trust)
    if any(name.partition(".")[0] in _TORCHVISION_USERS for name in scan.foreign) and find_spec("torchvision"):
        import_torchvision_ops()
    return _find_module(path, _unpickle(path, scan))


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
    except OSError as exc:
        raise ModelReadError(
            f"'{path}' cannot be opened: {exc.strerror or exc}.",
            code="model.not_found",
            cure="Check the path; a directory is no model file.",
        ) from exc
    if not start:
        raise ModelReadError(f"'{path}' is empty.", code="model.empty", cure="Save or copy it again.")
    return start


def _scan_archive(archive: zipfile.ZipFile, names: list[str]) -> PickleScan | None:
    for name in names:
        if name == "data.pkl" or name.endswith("/data.pkl"):
            return scan_pickles(read_entry(archive, name))
    return None


def _check_pickle(path: Path, scan: PickleScan, *, trust: bool) -> None:
    if not scan.is_complete:
        raise ModelReadError(
            f"'{path}' begins as a pickle and is damaged or cut short.",
            code="model.truncated",
            cure="Save or copy it again.",
        )
    if not scan.foreign:
        raise _state_dict(path, "torch.save")
    if not trust:
        shown = ", ".join(scan.foreign[:5]) + (", ..." if len(scan.foreign) > 5 else "")
        raise ModelReadError(
            f"'{path}' is a pickled object, and unpickling runs code that the file chooses (it names {shown}).",
            code="torch.pickle_refused",
            cure="If you trust where it comes from, allow it with trust=True (--trust-pickle); safer, give the model "
            "as TorchScript, a torch.export archive or ONNX.",
        )


def _unpickle(path: Path, scan: PickleScan) -> Any:
    """Unpickle a trusted file, its weights mapped from disk where the format allows it."""
    try:
        is_mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=False, mmap=is_mapped)
    except (ImportError, AttributeError) as exc:
        raise ModelReadError(
            f"'{path}' was pickled with code that is not here: {exc}.",
            code="torch.class_missing",
            cure=_cure_of_missing(exc, scan),
        ) from exc
    except Exception as exc:
        if _RECORD_MISSING in str(exc):
            raise ModelReadError(
                f"'{path}' is a file of torch.save that lacks tensors of its model.",
                code="model.truncated",
                cure="It is incomplete; save or copy it again.",
            ) from exc
        raise ModelReadError(
            f"'{path}' cannot be unpickled: {type(exc).__name__}: {exc}.",
            code="torch.pickle_invalid",
            cure="Save it again with this version of PyTorch.",
        ) from exc


def _cure_of_missing(error: ImportError | AttributeError, scan: PickleScan) -> str:
    if isinstance(error, AttributeError) and any(name.startswith(_OF_SCRIPTS) for name in scan.foreign):
        return (
            "Its class was defined in the script that ran (__main__), where no other program finds it: move it to a "
            "module and save the model again, or give the model itself to dippm.predict in that script."
        )
    return (
        "Put the folder of its source on Python's path ('PYTHONPATH=. dippm predict ...' where that is the current "
        "folder), install the package that it is from, or give TorchScript, torch.export or ONNX."
    )


def _find_module(path: Path, loaded: Any) -> nn.Module:
    if isinstance(loaded, nn.Module):
        return loaded
    candidates = (
        [value for value in loaded.values() if isinstance(value, nn.Module)] if isinstance(loaded, dict) else []
    )
    if len(candidates) == 1:
        return candidates[0]
    if isinstance(loaded, dict) and not candidates:
        raise _state_dict(path, "torch.save")
    raise ModelReadError(
        f"'{path}' holds a {type(loaded).__name__} with {len(candidates)} modules in it, and no single model.",
        code="torch.no_module",
        cure="Save the module itself.",
    )


def _state_dict(path: Path, writer: str) -> ModelReadError:
    return ModelReadError(
        f"'{path}' holds tensors, such as weights by name (a state_dict), and no model: which operators run on them "
        f"is not in it. It was written by {writer}.",
        code="torch.state_dict",
        cure="Load weights into their module and give that: the module itself to dippm.predict, or a file made of it "
        "with torch.export.save, torch.jit.save or torch.onnx.export.",
    )


def _not_recognised(path: Path) -> ModelReadError:
    return ModelReadError(
        f"'{path}' is neither a TorchScript nor a torch.export archive nor a pickle.",
        code="torch.not_recognised",
        cure="Save the model with torch.jit.save, torch.export.save or torch.onnx.export.",
    )
