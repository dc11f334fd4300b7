"""Tables of the label store, for SQLite and PostgreSQL alike. Importing this module imports SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Double, Integer, MetaData, Table, Text

from dippm.datasets.store.row import COLUMNS

__all__ = ["LABELS", "METADATA", "VERSION"]

_TYPES: dict[type, Callable[[], Any]] = {str: Text, int: Integer, float: Double}
_INDEXED = ("model_key",)

METADATA = MetaData()

VERSION = Table("dippm_label_store", METADATA, Column("schema_version", Integer, nullable=False))
"""One row: the version of the stored form."""

LABELS = Table(
    "labels",
    METADATA,
    Column("id", Integer, primary_key=True),  # grows with every label added: the order of insertion
    *(
        Column(
            column.name,
            _TYPES[column.kind](),
            nullable=column.is_optional,
            unique=column.name == "key" or None,
            index=column.name in _INDEXED or None,
        )
        for column in COLUMNS
    ),
)
"""One row per label."""
