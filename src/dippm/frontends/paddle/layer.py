"""A ``paddle.nn.Layer`` saved as the program that it runs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes, unknown_input

__all__ = ["save_layer"]

_EXAMPLE = 'For example input="3,224,224" for an image, or input={"input_ids": ((128,), "int64")} by name.'
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def save_layer(layer: Any, given: InputShapes, folder: Path) -> Path:
    """Trace a layer for inference with its batch left open, as ``paddle.jit.save`` does.

    Args:
        layer: The layer; it is as it was afterwards.
        given: Shapes of its inputs, per sample; empty where it was made static with shapes of its own.
        folder: An empty folder to write in.

    Returns:
        The file that holds the program.

    Raises:
        UsageError: ``input.shape_needed``, ``input.name_unknown``.
        UnsupportedError: ``paddle.not_static`` where Paddle cannot make the layer static.
    """
    import paddle

    specs = None if given.is_empty and _has_own_shapes(layer) else _specify(layer, given)
    prefix = folder / "model"
    training = [inner for inner in layer.sublayers(include_self=True) if inner.training]
    for inner in training:
        inner.training = False
    _forget_unfinished_traces()
    try:
        paddle.jit.save(layer, str(prefix), input_spec=specs)
    except Exception as exc:
        _forget_unfinished_traces()
        last = [line.strip() for line in str(exc).splitlines() if line.strip()]
        raise UnsupportedError(
            f"Paddle cannot make {type(layer).__name__} a static program: {type(exc).__name__}: "
            f"{' '.join(last)[-400:] or 'it does not say why'}",
            code="paddle.not_static",
            cure="Check that the input shapes and types are those that its forward takes, and that "
            "paddle.jit.save(layer, ...) works.",
        ) from exc
    finally:
        for inner in training:
            inner.training = True
    written = [path for path in (prefix.with_suffix(".json"), prefix.with_suffix(".pdmodel")) if path.is_file()]
    return written[0]


def _forget_unfinished_traces() -> None:
    """Drop what Paddle still holds of programs whose tracing failed.

    Paddle lists the parameters of a program that it traces under the program's address and takes them off the
    list as tracing ends. Where it fails they stay, and the next program at that address is given them beside its
    own: it ends with a KeyError, or the process with a fault, as their values are of a program that is gone.
    """
    from paddle.jit.dy2static import parameter_recorder

    parameter_recorder._global_parameter_recorder.params_dict.clear()
    parameter_recorder._global_parameter_recorder.tensor2value.clear()
    parameter_recorder._global_inplace_map.params_dict.clear()


def _has_own_shapes(layer: Any) -> bool:
    return getattr(layer.forward, "_function_spec", None) is not None and bool(
        getattr(layer.forward, "_input_spec", None) or layer.forward._function_spec.input_spec
    )


def _specify(layer: Any, given: InputShapes) -> list[Any]:
    """What ``paddle.jit.save`` takes: one specification for each argument of forward that is given, in its order."""
    import paddle

    parameters = _parameters(layer)
    names = list(parameters)
    needed = [name for name, item in parameters.items() if item.default is item.empty and item.kind not in _VARIADIC]
    if given.is_empty:
        raise UsageError(
            f"The input shapes of {type(layer).__name__} are needed: its forward takes "
            f"{', '.join(needed or names) or 'no named inputs'} and a layer does not say their sizes.",
            code="input.shape_needed",
            cure=_EXAMPLE,
        )
    named = given.named or {}
    plain = [name for name, item in parameters.items() if item.kind not in _VARIADIC]
    by_position = [
        (plain[position] if position < len(plain) else f"input_{position}", entry)
        for position, entry in enumerate(given.positional)
    ]
    is_variadic = any(item.kind is inspect.Parameter.VAR_POSITIONAL for item in parameters.values())
    entries: dict[str, InputEntry] = dict(by_position)
    unknown = [name for name in named if name not in plain]
    missing = [name for name in needed if name not in entries and name not in named]
    if unknown:
        raise unknown_input(unknown[0], plain, of=f"{type(layer).__name__}.forward")
    if missing or (len(by_position) > len(plain) and not is_variadic):
        raise UsageError(
            f"The inputs given do not fit {type(layer).__name__}.forward({', '.join(names)}). Got "
            f"{len(given.positional)} by position and {sorted(named) or 'none'} by name.",
            code="input.name_unknown",
            cure=f"Name them as forward does: {', '.join(plain)}.",
        )
    entries.update(named)
    last = max((plain.index(name) for name in entries if name in plain), default=-1)
    default = _default_dtype(layer)
    specs: list[Any] = []
    for name in plain[: last + 1]:
        entry = entries.pop(name, None)
        # An argument between two that are given keeps its default.
        specs.append(parameters[name].default if entry is None else _spec(paddle, name, entry, default))
    return specs + [_spec(paddle, name, entry, default) for name, entry in entries.items()]


def _parameters(layer: Any) -> dict[str, inspect.Parameter]:
    forward = getattr(layer.forward, "dygraph_function", layer.forward)
    try:
        found = dict(inspect.signature(forward).parameters)
    except (TypeError, ValueError):
        return {}
    found.pop("self", None)
    return found


def _spec(paddle: Any, name: str, entry: InputEntry, default: str) -> Any:
    dtype = default if entry.dtype is None else entry.dtype.value
    return paddle.static.InputSpec([None, *entry.shape], dtype, name)


def _default_dtype(layer: Any) -> str:
    """Type of an input for which none is given: that of the layer's weights where they agree."""
    found = {str(item.dtype).removeprefix("paddle.") for item in layer.parameters()}
    floating = {name for name in found if "float" in name}
    return floating.pop() if len(floating) == 1 else "float32"
