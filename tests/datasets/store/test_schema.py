from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy import create_engine, inspect

from dippm.datasets.store.row import COLUMNS
from dippm.datasets.store.schema import LABELS, METADATA, VERSION


def test_a_label_is_a_row_of_its_columns_and_a_number() -> None:
    assert [column.name for column in LABELS.columns] == ["id", *(column.name for column in COLUMNS)]
    assert [LABELS.columns[column.name].nullable for column in COLUMNS] == [column.is_optional for column in COLUMNS]
    kinds = {str: str, int: int, float: float}
    assert [LABELS.columns[column.name].type.python_type for column in COLUMNS] == [
        kinds[column.kind] for column in COLUMNS
    ]


def test_a_database_made_of_it_finds_labels_by_key_and_model() -> None:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    found = inspect(engine)
    assert set(found.get_table_names()) == {LABELS.name, VERSION.name}
    assert [each["column_names"] for each in found.get_unique_constraints(LABELS.name)] == [["key"]]
    assert [each["column_names"] for each in found.get_indexes(LABELS.name)] == [["model_key"]]
    engine.dispose()
