"""Values of the small tensors that a ``torch.export`` program holds: a loop may count from one of them.

Weights have none here, nor do large tensors. An archive keeps each tensor as plain bytes, so nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from dippm.frontends.torch.archive import EntryReader
from dippm.frontends.torch.dtypes import exported_dtype

__all__ = ["stored_tensors", "stored_values", "values_in_memory"]

_LARGEST_BYTES = 2**16


def stored_tensors(reader: EntryReader, kind: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """What an archive says of its tensors: name, name of the entry that holds the bytes, and what it is.

    Args:
        reader: The archive.
        kind: ``weights``, buffers among them, or ``constants``, which have tensors and other objects.
    """
    for entry in reader.names:
        folder, _, file = entry.rpartition("/")
        if f"/{folder}".endswith(f"/data/{kind}") and file.endswith(f"_{kind}_config.json"):
            for name, payload in json.loads(reader.read(entry))["config"].items():
                yield name, f"{folder}/{payload['path_name']}", payload


def stored_values(
    reader: EntryReader, tensors: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> dict[str, torch.Tensor]:
    """Values of the small tensors of an archive, by name; the formats of other machines are left alone.

    Args:
        reader: The archive.
        tensors: What :func:`stored_tensors` says of them.
    """
    present = set(reader.names)
    order = next((name for name in present if name.rpartition("/")[2] == "byteorder"), None)
    if order is None or reader.read(order) != b"little":
        return {}
    found = {}
    for name, entry, payload in tensors:
        meta = payload.get("tensor_meta")
        if meta is None or payload.get("is_param") or payload.get("use_pickle") or entry not in present:
            continue
        dtype = exported_dtype(meta["dtype"])
        sizes, strides = ([item.get("as_int") for item in meta[key]] for key in ("sizes", "strides"))
        offset = meta["storage_offset"].get("as_int")
        if dtype is None or None in (places := (*sizes, *strides, offset)) or min(places) < 0:
            continue
        if not _is_kept(dtype, sizes):
            continue
        content = reader.read(entry) if reader.size(entry) <= _LARGEST_BYTES else b""
        needed = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if len(content) % dtype.itemsize == 0 and needed * dtype.itemsize <= len(content):
            memory = torch.frombuffer(bytearray(content), dtype=dtype)
            found[name] = memory.as_strided(sizes, strides, offset).clone()
    return found


def values_in_memory(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """The same of a program that is in memory."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in {**program.constants, **program.state_dict}.items():
        # Of other classes are parameters and fake tensors, and of other devices those that may have no values.
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        if _is_kept(tensor.dtype, tensor.shape):
            found[name] = tensor.detach().clone()
    return found


def _is_kept(dtype: torch.dtype, sizes: list[int] | torch.Size) -> bool:
    count = math.prod(sizes)
    is_number = dtype.is_floating_point or dtype.is_complex
    return 0 < count * dtype.itemsize <= _LARGEST_BYTES and (count == 1 or not is_number)
