"""Reads TorchScript archives."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.errors import ModelReadError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.torch.archive import read_entry
from dippm.frontends.torch.reader import read_module
from dippm.frontends.torch.script_skeleton import script_skeleton
from dippm.graph import Graph

__all__ = ["is_script_archive", "read_script_file"]

# TorchScript code can only call operators, but these ones reach the file system.
_FILE_OPERATORS = re.compile(rb"torch\.(from_file|save|load)\b|ops\.\w+\.(from_file|save|load|read_file|write_file)\b")


def is_script_archive(names: list[str]) -> bool:
    """Whether an archive with these entries was written by ``torch.jit.save``."""
    return any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names)


def read_script_file(
    archive: zipfile.ZipFile,
    *,
    path: Path,
    input: InputShapes,  # noqa: A002
    batch_hint: int | None = None,
) -> Graph:
    """Read a TorchScript archive; its weights stay on disk.

    Args:
        archive: The open archive.
        path: Where it lies.
        input: Shapes of one sample.
        batch_hint: See :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        ModelReadError: ``torch.script_invalid`` where PyTorch cannot load it; ``torch.script_refused`` where its code
            reads or writes files.
        UsageError: where the inputs do not fit.
    """
    for name in archive.namelist():
        if "/code/" in name and name.endswith(".py") and _FILE_OPERATORS.search(read_entry(archive, name)):
            raise ModelReadError(
                f"The TorchScript code '{name}' in '{path}' reads or writes files.",
                code="torch.script_refused",
                cure="Remove that from the model before scripting it.",
            )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=FutureWarning)
        try:
            with _UncomparedConstants():  # type: ignore[no-untyped-call]
                module = torch.jit.load(script_skeleton(archive))  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError, NotImplementedError) as exc:
            lines = str(exc).strip().splitlines() or [type(exc).__name__]
            raise ModelReadError(
                f"PyTorch cannot load the TorchScript archive '{path}': {lines[0][:300]}",
                code="torch.script_invalid",
                cure="Save it again with this version of PyTorch, or export it with torch.export or to ONNX.",
            ) from exc
        if not hasattr(module, "forward"):
            raise ModelReadError(
                f"The TorchScript archive '{path}' has no forward method.",
                code="torch.script_invalid",
                cure="Script a module whose forward takes one fixed set of inputs.",
            )
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return read_module(module, input=input, source=str(path), batch_hint=batch_hint)


class _UncomparedConstants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers whether two constants are equal while a program is loaded: without data no two are known to be."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.equal.default:
            return args[0] is args[1]
        return func(*args, **(kwargs or {}))
