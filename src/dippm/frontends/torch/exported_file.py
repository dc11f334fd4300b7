"""Reads ``torch.export`` archives (.pt2) without PyTorch's own loader.

That loader reads all weights into memory, and unpickles parts of the archive, which can run code. The program itself
is JSON and says the shape of every weight, so nothing else is read but the values of a few small tensors.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dippm.costs.conditions import Mode
from dippm.errors import DippmError, ModelReadError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes, unknown_input
from dippm.frontends.picked_samples import find_picker, warn_of_picked_samples
from dippm.frontends.time_first import warn_of_time_first
from dippm.frontends.torch.archive import EntryReader
from dippm.frontends.torch.dtypes import from_torch_dtype
from dippm.frontends.torch.exported_module import ExportedModule, meta_tensor
from dippm.frontends.torch.exported_ranges import warn_of_ranges
from dippm.frontends.torch.exported_time_first import find_exported_time_first
from dippm.frontends.torch.exported_values import stored_tensors, stored_values
from dippm.frontends.torch.reader import read_module
from dippm.frontends.torch.rebatch import Followed
from dippm.graph import Graph, OpKind
from dippm.graph.passes.held_batch import find_held_batch

__all__ = ["is_exported_archive", "read_exported_file", "read_program"]

# A size that was left open, in an example.
_EXAMPLE = 128
# What comes of entries that are not what torch.export writes.
_ERRORS_OF_DAMAGE = (
    KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError, StopIteration,
)  # fmt: skip
_LEGACY = "serialized_exported_program.json"


def is_exported_archive(names: list[str]) -> bool:
    """Whether an archive with these entries was written by ``torch.export.save``."""
    return _program_entry(names) is not None


def _program_entry(names: list[str]) -> str | None:
    for name in names:
        parts = name.split("/")
        if name == _LEGACY or (len(parts) >= 2 and parts[-2] == "models" and parts[-1].endswith(".json")):
            return name
    return None


def read_exported_file(
    archive: zipfile.ZipFile,
    *,
    path: Path,
    input: InputShapes,  # noqa: A002
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read a ``torch.export`` archive.

    Args:
        archive: The open archive.
        path: Where it lies, for messages.
        input: Shapes of one sample; empty to take those that it was exported with.
        mode: In training, weights that were frozen when the program was exported are buffers; its operators are what
            they are.
        batch_hint: See :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        ModelReadError: ``torch.export_invalid`` where the program is not what ``torch.export`` writes.
        UsageError: where the inputs do not fit the program.
    """
    reader = EntryReader(archive)
    entry = _program_entry(reader.names)
    if entry is None:
        raise ModelReadError(f"'{path}' holds no exported program.", code="torch.export_invalid")
    try:
        program = json.loads(reader.read(entry))
        stored = list(stored_tensors(reader, "weights"))
        weights = {name: payload for name, _, payload in stored}
        shared = _shared_weights(weights)
        values = stored_values(reader, [*stored, *stored_tensors(reader, "constants")])
    except _ERRORS_OF_DAMAGE as exc:
        raise _damaged(str(path), exc) from exc
    return read_program(
        program,
        shared=shared,
        values=values,
        wrapped=[name for name, payload in weights.items() if payload.get("use_pickle")],
        input=input,
        source=str(path),
        mode=mode,
        batch_hint=batch_hint,
    )


def read_program(
    program: Mapping[str, Any],
    *,
    shared: Mapping[str, str],
    values: Mapping[str, torch.Tensor],
    wrapped: Sequence[str],
    input: InputShapes,  # noqa: A002
    source: str,
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    """Read a program of ``torch.export`` as its archive says it.

    Args:
        program: The program, parsed from JSON.
        shared: Weights that are one tensor, as name to the name of the first.
        values: Values of some buffers and constants, by name.
        wrapped: Names of weights of a class of tensors of their own.
        input: See :func:`read_exported_file`.
        source: What it was read from, for messages and the graph.
        mode: See :func:`read_exported_file`.
        batch_hint: See :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        ModelReadError: As :func:`read_exported_file`.
        UsageError: As :func:`read_exported_file`.
    """
    try:
        time_first = find_exported_time_first(program)
        turned = frozenset() if time_first is None else frozenset(time_first.names)
        batch, dynamic = _exported_batch(program, turned)
        module = ExportedModule(program, shared=shared, values=values, exported_batch=batch)
        inputs = _inputs(module, input, source=source, batch=batch, turned=turned)
        named = inputs.named or {}
        module.batch_axes = {name: entry.batch_axis for name, entry in named.items() if entry.is_batched}
        told = warn_of_ranges(program, named, batch_hint=batch_hint)
    except _ERRORS_OF_DAMAGE as exc:
        raise _damaged(source, exc) from exc
    try:
        if dynamic or batch is None or not module.batch_axes:
            graph = read_module(module, input=inputs, source=source, mode=mode, batch_hint=batch_hint)
        else:
            graph = _read_fixed(module, inputs, source=source, mode=mode, batch=batch)
        picker = find_picker(graph)
        if picker is not None:
            is_settled = input.is_empty and not dynamic
            told.append(warn_of_picked_samples(picker, is_settled=is_settled))
            if is_settled and batch is not None:
                module.batch_axes = {}
                whole = {
                    name: dataclasses.replace(entry, shape=entry.at(batch), is_batched=False, batch_axis=0)
                    for name, entry in named.items()
                }
                graph = read_module(module, input=InputShapes(named=whole), source=source, mode=mode)
    except UsageError as exc:
        cure = _cure_of_sizes(module, named, batch=batch, turned=turned) if exc.code == "input.shape_wrong" else None
        if cure is None:
            raise
        raise UsageError(str(exc).removesuffix(exc.cure or "").strip(), code=exc.code, cure=cure) from exc
    told += _warn_of_wrapped(wrapped)
    if time_first is not None and any(named[name].is_batched for name in time_first.names):
        told.append(warn_of_time_first(time_first, is_turned=True))
    return dataclasses.replace(graph, warnings=(*graph.warnings, *told))


def _damaged(source: str, exc: Exception) -> ModelReadError:
    return ModelReadError(
        f"'{source}' holds a program that torch.export did not write or that is damaged ({type(exc).__name__}: {exc}).",
        code="torch.export_invalid",
        cure="Export the model again with torch.export.save.",
    )


def _read_fixed(module: ExportedModule, inputs: InputShapes, *, source: str, mode: Mode, batch: int) -> Graph:
    """Read a program with a batch size written into it, for every batch size where that can be shown to be right."""
    exported = read_module(module, input=inputs, source=source, mode=mode, batches=(batch,))
    reason = ""
    # A batch of one leaves no trace in what was repeated, so there the reading that follows it comes first.
    for module.followed in (Followed.RANGES, Followed.VIEWS) if batch == 1 else Followed:
        try:
            graph = read_module(module, input=inputs, source=source, mode=mode, batches=(batch + 1, batch + 2))
        except DippmError as exc:
            failure = f"It was exported for batch {batch} and cannot run at another one: {exc}"
        else:
            held = find_held_batch(graph, batch)
            if graph.fixed_batch is not None or not _agrees(graph, exported, batch=batch):
                failure = f"It was exported for batch {batch}, and its operators do not follow another one."
            elif held is None:
                return graph
            else:
                failure = f"It was exported for batch {batch}, which stands in its operators: {held.reason}"
        reason = reason or failure
    return dataclasses.replace(
        exported,
        fixed_batch=batch,
        fixed_batch_reason=f"{reason} Export it with dynamic_shapes for other batch sizes.",
    )


def _agrees(graph: Graph, exported: Graph, *, batch: int) -> bool:
    """Whether a symbolic graph has, at the exported batch, the shapes of the program itself.

    Views, and the copies that take their place, may differ: with a batch of one more can be viewed without a copy.
    """

    def shapes(of: Graph, *, at: int) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (node.source_op, tuple(dim.at(at) for dim in of.tensors[index].shape))
            for node in of.nodes
            if node.kind not in {OpKind.VIEW, OpKind.COPY, OpKind.FILL}
            for index in node.outputs
        ]

    return shapes(graph, at=batch) == shapes(exported, at=batch)


def _exported_batch(program: Mapping[str, Any], turned: Collection[str]) -> tuple[int | None, bool]:
    """Size of the inputs' batch where it is written into the program; whether it is open.

    Where inputs differ in it, the first input tells; the others then have no batch. It is their first dimension. Where
    some are turned, the second one of these tells.
    """
    module = program["graph_module"]
    sizes = []
    for spec in module["signature"]["input_specs"]:
        if "user_input" in spec and "as_tensor" in spec["user_input"]["arg"]:
            name = spec["user_input"]["arg"]["as_tensor"]["name"]
            meta = module["graph"]["tensor_values"][name]
            if name in turned:
                return (int(size["as_int"]), False) if "as_int" in (size := meta["sizes"][1]) else (None, True)
            if meta["sizes"]:
                sizes.append(meta["sizes"][0])
    if any("as_expr" in size for size in sizes):
        return None, True
    return (int(sizes[0]["as_int"]), False) if sizes else (None, False)


def _shared_weights(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Names of weights that are the same tensor as an earlier one."""
    shared: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for weight, payload in weights.items():
        meta = payload.get("tensor_meta") or {}
        key = (
            payload["path_name"],
            json.dumps([meta.get("sizes"), meta.get("strides"), meta.get("storage_offset")]),
        )
        shared[weight] = first.setdefault(key, weight)
    return shared


def _warn_of_wrapped(names: Sequence[str]) -> list[str]:
    """What is said of weights of a class of their own, such as quantised ones: a program takes them for plain ones."""
    if not names:
        return []
    return [
        f"{len(names)} weights are of a class of tensors of their own ({names[0]}{', ...' if len(names) > 1 else ''}), "
        "which the program does not tell apart: they are taken for plain ones of the type that they stand for, and "
        "what it takes to make those of them is not counted. Give the module, or export it with its weights unwrapped."
    ]


def _inputs(
    module: ExportedModule, given: InputShapes, *, source: str, batch: int | None, turned: Collection[str]
) -> InputShapes:
    """The caller's inputs, or those of the export, by the program's own names and types."""
    if given.structure is not None:
        # A program takes all tensors side by side, in the order in which they were nested.
        given = InputShapes(positional=given.entries)
    if given.named:
        for name in given.named:
            if name not in module.input_names and name.replace(".", "_") not in module.input_names:
                raise unknown_input(name, module.input_names, of=f"'{source}'")
        # What stands in the argument batch under the name ids is batch_ids to the program.
        renamed = {name if name in module.input_names else name.replace(".", "_"): name for name in given.named}
        if len(renamed) < len(given.named):
            raise UsageError(
                f"'{source}' takes the inputs {', '.join(module.input_names)}. Got one of them twice: "
                f"{', '.join(sorted(given.named))}.",
                code="input.name_unknown",
            )
        given = InputShapes(named={own: given.named[name] for own, name in renamed.items()})
    if given.positional and len(given.positional) != len(module.input_names):
        raise UsageError(
            f"'{source}' takes {len(module.input_names)} inputs ({', '.join(module.input_names)}). "
            f"Got {len(given.positional)}.",
            code="input.name_unknown",
            cure="Give one shape for each.",
        )
    entries: dict[str, InputEntry] = {}
    for position, name in enumerate(module.input_names):
        meta = module.input_meta(name)
        dtype = from_torch_dtype(meta_tensor({**meta, "sizes": [], "strides": []}).dtype)
        own = given.positional[position] if given.positional else (given.named or {}).get(name)
        axis = int(name in turned)
        if own is not None:
            entries[name] = dataclasses.replace(own, dtype=own.dtype or dtype, batch_axis=axis if own.shape else 0)
            continue
        sizes, is_batched = _sample_sizes(meta["sizes"], axis=axis, batch=batch)
        if not all("as_int" in size for size in sizes):
            example = ",".join(str(size.get("as_int", _EXAMPLE)) for size in sizes)
            raise UsageError(
                f"Input '{name}' of '{source}' has sizes that were left open when it was exported.",
                code="input.shape_needed",
                cure=f'Give its shape without the batch, for example input={{"{name}": "{example}"}} '
                f"(--input {name}={example}).",
            )
        entries[name] = InputEntry(
            shape=tuple(int(size["as_int"]) for size in sizes), dtype=dtype, is_batched=is_batched, batch_axis=axis
        )
    return InputShapes(named=entries)


def _cure_of_sizes(
    module: ExportedModule, given: Mapping[str, InputEntry], *, batch: int | None, turned: Collection[str]
) -> str | None:
    """What to do about inputs of other sizes than those that were fixed at the export; None where there are none."""
    fixed: dict[str, str] = {}
    for name, entry in given.items():
        sizes, _ = _sample_sizes(module.input_meta(name)["sizes"], axis=int(name in turned), batch=batch)
        own = [size.get("as_int") for size in sizes]
        is_met = len(own) == len(entry.shape) and all(
            size in {None, asked} for size, asked in zip(own, entry.shape, strict=True)
        )
        if not is_met:
            asked = entry.shape if len(own) == len(entry.shape) else [_EXAMPLE] * len(own)
            fixed[name] = ",".join(str(given if size is None else size) for size, given in zip(own, asked, strict=True))
    if not fixed:
        return None
    shapes = " ".join(f"--input {name}={sizes}" for name, sizes in fixed.items())
    return (
        f"Sizes were fixed when it was exported: give those ({shapes}, without the batch), or export it with those "
        "left open that its layers leave open (dynamic_shapes)."
    )


def _sample_sizes(
    sizes: Sequence[Mapping[str, Any]], *, axis: int, batch: int | None
) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """The sizes of one sample of an input; whether the batch was among those that it was exported with."""
    is_batched = _is_batched(sizes[axis:], batch)
    return ([*sizes[:axis], *sizes[axis + 1 :]] if is_batched else sizes), is_batched


def _is_batched(sizes: Sequence[Mapping[str, Any]], batch: int | None) -> bool:
    """Whether the batch is the first of these dimensions: it is open, or the one that the program was made for."""
    if not sizes:
        return False
    return "as_expr" in sizes[0] or (batch is not None and int(sizes[0]["as_int"]) == batch)
