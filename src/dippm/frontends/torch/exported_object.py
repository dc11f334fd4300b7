"""Reads an exported program that is in memory, as it would stand in an archive of ``torch.export.save``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._export.serde.serialize import (
    EnumEncoder,
    GraphModuleSerializer,
    SerializeError,
    _dataclass_to_dict,
    serialize_range_constraints,
)
from torch.export import ExportedProgram
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dippm.costs.conditions import Mode
from dippm.errors import ModelReadError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.frontends.torch.exported_file import read_program
from dippm.frontends.torch.exported_values import values_in_memory
from dippm.frontends.trace_of_training import check_training
from dippm.graph import Graph

__all__ = ["read_exported_object"]


def read_exported_object(
    program: ExportedProgram,
    *,
    input: InputShapes,  # noqa: A002
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read an exported program; its weights are neither copied nor written.

    Args:
        program: The program.
        input: Shapes of one sample; empty to take those that it was exported with.
        mode: See :func:`dippm.frontends.torch.exported_file.read_exported_file`.
        batch_hint: See :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        ModelReadError: ``torch.export_invalid`` where ``torch.export.save`` could not write it.
        UsageError: where the inputs do not fit the program.
        UnsupportedError: see :func:`dippm.frontends.torch.reader.read_module`.
    """
    source = type(program).__name__
    weights = program.state_dict
    with PROCESS_LOCK:
        graph = read_program(
            _as_written(program),
            shared=_shared_weights(weights.items()),
            values=values_in_memory(program),
            wrapped=[name for name, tensor in weights.items() if _is_wrapped(tensor)],
            input=input,
            source=source,
            mode=mode,
            batch_hint=batch_hint,
        )
    return check_training(graph, mode)


def _as_written(program: ExportedProgram) -> Mapping[str, Any]:
    """What the JSON of an archive says of a program's graph."""
    try:
        serializer = GraphModuleSerializer(program.graph_signature, program.module_call_graph)
        written = {
            "graph_module": _dataclass_to_dict(serializer.serialize(program.graph_module)),  # type: ignore[no-untyped-call]
            "range_constraints": _dataclass_to_dict(serialize_range_constraints(program.range_constraints)),  # type: ignore[no-untyped-call]
        }
    except (SerializeError, NotImplementedError) as exc:
        raise ModelReadError(
            f"The exported program cannot be read, as torch.export.save cannot write it: {exc}",
            code="torch.export_invalid",
            cure="Give the module that it was exported from.",
        ) from exc
    read: dict[str, Any] = json.loads(json.dumps(written, cls=EnumEncoder))
    return read


def _shared_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Names of weights that are the same tensor as an earlier one."""
    shared: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in weights:
        shared[name] = first.setdefault(_place(tensor), name)
    return shared


def _is_wrapped(tensor: object) -> bool:
    """Whether it is of a class of tensors of its own, which has others inside and no memory."""
    return is_traceable_wrapper_subclass(tensor)


def _place(tensor: torch.Tensor) -> object:
    """What two tensors have in common that are one, under different names."""
    if _is_wrapped(tensor):
        return id(tensor)
    storage = tensor.untyped_storage()._cdata
    return storage, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
