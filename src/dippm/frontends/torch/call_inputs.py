"""From the shapes that a caller gave to the tensors that a module is called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from dippm.errors import UsageError
from dippm.frontends.call_structure import CallStructure, Leaf
from dippm.frontends.inputs import (
    InputEntry,
    InputShapes,
    by_position,
    name_position,
    nearest_input,
    nest_dotted_names,
    unknown_input,
)
from dippm.frontends.torch.dtypes import to_torch_dtype
from dippm.frontends.torch.recorder import Recorder

__all__ = ["check_inputs", "default_dtype", "make_inputs", "structure_of", "unknown_name"]

_EXAMPLE = (
    'For example input="3,224,224" (--input 3,224,224) for an image, or input={"input_ids": "128:int64"} '
    "(--input input_ids=128:int64) by name."
)


def check_inputs(module: nn.Module, given: InputShapes) -> InputShapes:
    """Compare the given inputs with the signature of the module's forward.

    Returns:
        The inputs; those named by paths, such as ``batch.ids``, in the argument that they are part of, and those
        named as graphs name what is given by position as such.

    Raises:
        UsageError: ``input.shape_needed`` where nothing was given and the module takes something;
            ``input.name_unknown`` or ``input.missing`` where the inputs do not fit forward's arguments.
    """
    if isinstance(module, torch.jit.ScriptModule):
        if given.is_empty:
            names = ", ".join(_argument_names(module))
            raise _shape_needed(module, f"its forward takes {names} and TorchScript does not say their sizes")
        given = by_position(given, _argument_names(module))
        if (unknown := unknown_name(module, given)) is not None:
            raise unknown
        return given
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return given
    parameters = list(signature.parameters.values())
    needed = [item.name for item in parameters if item.default is item.empty and item.kind not in _VARIADIC]
    if given.is_empty and not parameters:
        return given
    if given.is_empty:
        known = ", ".join(needed or [item.name for item in parameters]) or "no named inputs"
        raise _shape_needed(module, f"its forward takes {known} and a module does not say their sizes")
    given = nest_dotted_names(given, list(signature.parameters))
    takes_any_name = any(item.kind is item.VAR_KEYWORD for item in parameters)
    if not takes_any_name:
        given = by_position(given, list(signature.parameters))
    structure = structure_of(given)
    if not takes_any_name and (unknown := unknown_name(module, given)) is not None:
        raise unknown
    try:
        signature.bind(*structure.positional, **structure.named)
    except TypeError as exc:
        raise UsageError(
            f"The inputs given do not fit {type(module).__name__}.forward{signature}: {exc}. Got "
            f"{len(structure.positional)} by position and {sorted(structure.named) or 'none'} by name.",
            code="input.name_unknown",
            cure=f"Name them as forward does: {', '.join(item.name for item in parameters)}.",
        ) from exc
    return given


def unknown_name(module: nn.Module, given: InputShapes, *, why: str = "") -> UsageError | None:
    """The error of the first given name that is none of forward's, or None.

    Args:
        module: The module.
        given: The inputs.
        why: What a module that passes on arguments by any name says of them, a sentence; there a name is wrong only
            where it is near to one that was not given.
    """
    names, named = _argument_names(module), structure_of(given).named
    for name in named if names else ():
        is_passed_on = why and nearest_input(name, names) in (None, *named)
        if name not in names and not is_passed_on:
            of = getattr(module, "original_name", type(module).__name__)  # TorchScript's own class says nothing
            return unknown_input(name, names, of=f"{of}.forward", why=why)
    return None


def _argument_names(module: nn.Module) -> list[str]:
    if isinstance(module, torch.jit.ScriptModule):
        schema = getattr(module.forward, "schema", None)
        return [] if schema is None else [item.name for item in schema.arguments[1:]]
    parameters = inspect.signature(module.forward).parameters.values()
    return [item.name for item in parameters if item.kind not in _VARIADIC]


def structure_of(given: InputShapes) -> CallStructure:
    """How the tensors make up the arguments of the call: each is one of its own where nothing else is said."""
    if given.structure is not None:
        return given.structure
    count = len(given.positional)
    return CallStructure(
        positional=tuple(Leaf(position=place) for place in range(count)),
        named={name: Leaf(position=count + place) for place, name in enumerate(given.named or {})},
    )


def _shape_needed(module: nn.Module, why: str) -> UsageError:
    return UsageError(
        f"The input shapes of {type(module).__name__} are needed: {why}.", code="input.shape_needed", cure=_EXAMPLE
    )


_VARIADIC = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def default_dtype(module: nn.Module) -> torch.dtype:
    """Type of an input for which the caller gave none: that of the module's weights where they agree."""
    dtypes = {item.dtype for item in module.parameters() if item.dtype.is_floating_point}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def make_inputs(
    recorder: Recorder,
    given: InputShapes,
    *,
    batch: int,
    default: torch.dtype,
    integer_inputs: frozenset[int],
    full_masks: frozenset[int] = frozenset(),
    full_lengths: Mapping[int, int] | None = None,
) -> tuple[tuple[Any, ...], Mapping[str, Any], tuple[int, ...]]:
    """Make the model's input tensors.

    Args:
        recorder: Registers them.
        given: Shapes of one sample.
        batch: Size of the first dimension.
        default: Element type where the caller gave none.
        integer_inputs: Positions of inputs without a given type that are int64 instead.
        full_masks: Positions of inputs that are taken to be masks which leave nothing out.
        full_lengths: By position, what inputs that are lengths of samples are taken to hold.

    Returns:
        Positional arguments, keyword arguments, and the inputs' indices in the graph.
    """
    tensors: list[torch.Tensor] = []

    def make(name: str, entry: InputEntry) -> None:
        dtype = torch.int64 if len(tensors) in integer_inputs else default
        if entry.dtype is not None:
            wanted = to_torch_dtype(entry.dtype)
            if wanted is None:
                raise UsageError(
                    f"Input '{name}' has element type {entry.dtype}, which PyTorch does not have.",
                    code="input.dtype_unknown",
                    cure="Use one of float32, float16, bfloat16, int64, int32, int8, uint8, bool.",
                )
            dtype = wanted
        shape, values = entry.at(batch), entry.values
        if len(tensors) in full_masks:
            values = (1,) * prod(shape[1:])
            recorder.assumptions.append(f"The mask '{name}' is taken to leave nothing out, as the model decides by it.")
        length = (full_lengths or {}).get(len(tensors))
        if length is not None:
            values = (length,)
            recorder.assumptions.append(
                f"The lengths '{name}' are taken to be {length} for all samples, as sizes follow from the largest."
            )
        tensor = recorder.table.add_input(name=name, shape=shape, dtype=dtype, values=values)
        tensors.append(tensor)

    count = len(given.positional)
    for position, entry in enumerate(given.positional):
        make(name_position(position, count), entry)
    for name, entry in (given.named or {}).items():
        make(name, entry)
    positional, named = structure_of(given).fill(tensors)
    return positional, named, tuple(recorder.index_of(tensor) for tensor in tensors)
