"""Frontend for PyTorch: modules and PyTorch's own files. Importing it does not import torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from dippm.costs.conditions import Mode
from dippm.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torch.export import ExportedProgram

    from dippm.frontends.inputs import InputShapes
    from dippm.graph import Graph

__all__ = ["read_exported_object", "read_module", "read_torch_file"]


def read_module(
    module: nn.Module,
    *,
    input: InputShapes,  # noqa: A002
    source: str = "",
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read an ``nn.Module`` into a graph; see :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        MissingExtraError: where PyTorch is not installed.
    """
    _require_torch("read a PyTorch module")
    from dippm.frontends.torch.reader import read_module as read

    return read(module, input=input, source=source, mode=mode, batch_hint=batch_hint)


def read_exported_object(
    program: ExportedProgram,
    *,
    input: InputShapes,  # noqa: A002
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read an exported program in memory; see :func:`dippm.frontends.torch.exported_object.read_exported_object`."""
    from dippm.frontends.torch.exported_object import read_exported_object as read

    return read(program, input=input, mode=mode, batch_hint=batch_hint)


def read_torch_file(
    path: str | Path,
    *,
    input: InputShapes,  # noqa: A002
    trust: bool = False,
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read a file that PyTorch wrote; see :func:`dippm.frontends.torch.torch_file.read_torch_file`.

    Raises:
        MissingExtraError: where PyTorch is not installed.
    """
    _require_torch("read a PyTorch file")
    from dippm.frontends.torch.torch_file import read_torch_file as read

    return read(path, input=input, trust=trust, mode=mode, batch_hint=batch_hint)


def _require_torch(purpose: str) -> None:
    if find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="torch", purpose=purpose)
