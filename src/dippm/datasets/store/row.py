"""A label as one flat row of numbers and texts: what a database and a Parquet file hold alike.

The columns are derived from the fields of recipe, configuration and measurement, in their order. A change of these
fields is a change of the stored form: raise ``SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dippm.costs.conditions import Conditions
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.errors import DippmError, UsageError, quote
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measurement import DeviceState, Measurement, Outcome, SoftwareStack

__all__ = ["COLUMNS", "SCHEMA_VERSION", "Column", "label_to_row", "row_to_label"]

SCHEMA_VERSION = 1
"""Version of the stored form, in databases and in Parquet files."""

Scalar = str | int | float | None

_Choice = TypeVar("_Choice", bound=StrEnum)

# No measurement has them: labels are of one batch a step, and keep every activation.
_NOT_STORED = ("accumulation", "is_checkpointed", "adapters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column.

    Args:
        name: Name, with the unit where it has one.
        kind: ``str``, ``int`` or ``float``.
        is_optional: Whether None may stand in it.
    """

    name: str
    kind: type[str] | type[int] | type[float]
    is_optional: bool = False


def label_to_row(label: Label) -> dict[str, Scalar]:
    """Flatten a label, keys in the order of :data:`COLUMNS`.

    A text that a database cannot hold (NUL, a lone surrogate: they come with messages of crashed libraries) has
    these characters replaced.

    Raises:
        UsageError: ``label.not_finite`` where a figure is NaN or infinite: SQLite would turn it into "not measured".
    """
    recipe, configuration, measurement = label.recipe, label.configuration, label.measurement
    described = recipe.to_dict()
    row: dict[str, Any] = {
        "key": label.key,
        "source": label.source,
        "repeat": label.repeat,
        "model_key": recipe.model_key,
        "graph_hash": label.graph_hash,
        "collection": recipe.collection,
        "family": recipe.family,
        "architecture": recipe.architecture,
        # Named inputs keep their order: it is the order of the call.
        "arguments": json.dumps(described["arguments"], separators=(",", ":")),
        "inputs": json.dumps(described["inputs"], separators=(",", ":")),
        "batch": recipe.batch,
        "engine": configuration.engine.value,
    }
    for part in (configuration.conditions, measurement, measurement.state, measurement.software):
        for field in fields(part):
            if field.name not in ("state", "software"):
                row[field.name] = getattr(part, field.name)
    return {column.name: _to_scalar(column, row[column.name]) for column in COLUMNS}


def row_to_label(row: Mapping[str, Any], *, name: str = "This row") -> Label:
    """Bring a row back to the label that it was made of; columns beyond :data:`COLUMNS` are passed over.

    A figure that is NaN was not measured: so some libraries write what is missing.

    Args:
        row: Values by column.
        name: What the row is called in an error.

    Raises:
        UsageError: ``label.invalid`` where the row lacks a column or holds what no label has.
    """
    try:
        return _to_label(_read_values(row))
    except (DippmError, TypeError, ValueError, OverflowError) as exc:
        raise UsageError(
            f"{name} is no label: {exc}",
            code="label.invalid",
            cure="Correct the row or remove it; what was not measured stays empty.",
        ) from exc


def _read_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose values are of their columns' kinds, whole numbers for others where they are meant."""
    values = dict(row)
    try:
        for name, kind, is_optional, least in _READ:
            value = values[name]
            if value.__class__ is kind:
                if kind is str or least <= value < math.inf:
                    continue
            elif value is None and is_optional:
                continue
            values[name] = _to_value(name, kind, value, is_optional=is_optional, least=least)
    except KeyError as exc:
        raise ValueError(f"It lacks the column {exc.args[0]}.") from exc
    return values


def _to_value(name: str, kind: type, value: Any, *, is_optional: bool, least: float) -> Scalar:
    if kind is not str and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= least and (kind is float or value == int(value)):
            return float(value) if kind is float else int(value)
        if math.isnan(value) and is_optional:
            return None
    wanted = {str: "a text", int: "a whole number", float: "a finite number"}[kind]
    bounds = " of 0 or more" if least == 0 else ""
    or_empty = ", or empty" if is_optional else ""
    raise ValueError(f"{name} must be {wanted}{bounds}{or_empty}. Got {quote(value)} instead.")


def _to_label(values: Mapping[str, Any]) -> Label:
    conditions = Conditions.parse(**{name: values[name] for name in _CONDITIONS})
    measured = {name: values[name] for name in _MEASUREMENT}
    measured["outcome"] = _choose(Outcome, values, "outcome")
    return Label(
        recipe=_to_recipe(values),
        configuration=Configuration(
            batch=values["batch"], conditions=conditions, engine=_choose(Engine, values, "engine")
        ),
        measurement=Measurement(
            **measured,
            state=DeviceState(**{name: values[name] for name in _STATE}),
            software=SoftwareStack(**{name: values[name] for name in _SOFTWARE}),
        ),
        repeat=values["repeat"],
        graph_hash=values["graph_hash"],
        source=values["source"],
    )


def _to_recipe(values: Mapping[str, Any]) -> Recipe:
    held = {name: values[name] for name in ("collection", "family", "architecture", "batch")}
    for name in ("arguments", "inputs"):
        try:
            held[name] = json.loads(values[name])
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"{name} must be JSON. Got {quote(values[name])} instead.") from exc
    try:
        return Recipe.from_dict(held)
    except UsageError as exc:
        described = f"arguments {quote(values['arguments'])} and inputs {quote(values['inputs'])}"
        raise ValueError(f"Its {described} describe no model.") from exc


def _choose(choices: type[_Choice], values: Mapping[str, Any], name: str) -> _Choice:
    try:
        return choices(values[name])
    except ValueError as exc:
        raise ValueError(f"{name} must be one of {', '.join(choices)}. Got {quote(values[name])} instead.") from exc


def _to_scalar(column: Column, value: Any) -> Scalar:
    if value is None:
        return None
    if column.kind is str:
        return str(value).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if column.kind is float:
        if not math.isfinite(value):
            raise UsageError(
                f"The figure {column.name} of a label must be finite. Got {value}.",
                code="label.not_finite",
                cure="Use None for a figure that was not measured.",
            )
        return float(value)
    return int(value)


def _columns_of(definition: type, *, leave_out: tuple[str, ...] = ()) -> Iterator[Column]:
    hints = get_type_hints(definition)
    for field in fields(definition):
        if field.name in leave_out:
            continue
        hint = hints[field.name]
        is_optional = get_origin(hint) is types.UnionType
        kind = next(arm for arm in get_args(hint) if arm is not types.NoneType) if is_optional else hint
        yield Column(name=field.name, kind=str if issubclass(kind, StrEnum) else kind, is_optional=is_optional)


COLUMNS: tuple[Column, ...] = (
    Column(name="key", kind=str),
    Column(name="source", kind=str),
    Column(name="repeat", kind=int),
    Column(name="model_key", kind=str),
    Column(name="graph_hash", kind=str),
    Column(name="collection", kind=str),
    Column(name="family", kind=str),
    Column(name="architecture", kind=str),
    Column(name="arguments", kind=str),
    Column(name="inputs", kind=str),
    Column(name="batch", kind=int),
    Column(name="engine", kind=str),
    *_columns_of(Conditions, leave_out=_NOT_STORED),
    *_columns_of(Measurement, leave_out=("state", "software")),
    *_columns_of(DeviceState),
    *_columns_of(SoftwareStack),
)
"""Columns of a stored label: ``arguments`` and ``inputs`` are JSON, the rest scalars; ``key`` and ``model_key`` follow
from the others and stand there for queries."""

_CONDITIONS = tuple(field.name for field in fields(Conditions) if field.name not in _NOT_STORED)
_MEASUREMENT = tuple(field.name for field in fields(Measurement) if field.name not in ("state", "software"))
_STATE = tuple(field.name for field in fields(DeviceState))
_SOFTWARE = tuple(field.name for field in fields(SoftwareStack))
# Name, kind, whether it may be empty, and the least number of what is read; temperatures may be below 0.
_READ: tuple[tuple[str, type[Any], bool, float], ...] = tuple(
    (column.name, column.kind, column.is_optional, -sys.float_info.max if column.name in _STATE else 0.0)
    for column in COLUMNS
    if column.name not in ("key", "model_key")
)
