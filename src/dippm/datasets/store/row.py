"""A label as one flat row of numbers and texts: what a database and a Parquet file hold alike.

The columns are derived from the fields of recipe, configuration and measurement, in their order. A change of these
fields is a change of the stored form: raise ``SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from dippm.costs.conditions import Conditions
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measurement import DeviceState, Measurement, Outcome, SoftwareStack

__all__ = ["COLUMNS", "SCHEMA_VERSION", "Column", "label_to_row", "row_to_label"]

SCHEMA_VERSION = 1
"""Version of the stored form, in databases and in Parquet files."""

Scalar = str | int | float | None

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


def row_to_label(row: Mapping[str, Any]) -> Label:
    """Bring a row back to the label that it was made of; columns beyond :data:`COLUMNS` are passed over.

    Raises:
        UsageError: ``label.invalid`` where the row lacks a column or holds what no label has.
    """
    try:
        batch = int(row["batch"])
        recipe = Recipe.from_dict(
            {
                "collection": row["collection"],
                "family": row["family"],
                "architecture": row["architecture"],
                "arguments": json.loads(row["arguments"]),
                "inputs": json.loads(row["inputs"]),
                "batch": batch,
            }
        )
        conditions = Conditions.parse(
            **{field.name: row[field.name] for field in fields(Conditions) if field.name not in _NOT_STORED}
        )
        measured = {
            field.name: row[field.name] for field in fields(Measurement) if field.name not in ("state", "software")
        }
        negative = [name for name, value in measured.items() if isinstance(value, int | float) and value < 0]
        if negative:
            raise ValueError(f"{negative[0]} below 0")
        measured["outcome"] = Outcome(row["outcome"])
        return Label(
            recipe=recipe,
            configuration=Configuration(batch=batch, conditions=conditions, engine=Engine(row["engine"])),
            measurement=Measurement(
                **measured,
                state=DeviceState(**{field.name: row[field.name] for field in fields(DeviceState)}),
                software=SoftwareStack(**{field.name: row[field.name] for field in fields(SoftwareStack)}),
            ),
            repeat=int(row["repeat"]),
            graph_hash=row["graph_hash"],
            source=row["source"],
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageError(f"This row is no label: {exc!r} in {dict(row)!r:.300}.", code="label.invalid") from exc


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
