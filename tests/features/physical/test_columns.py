from __future__ import annotations

from dippm.features.physical.columns import AT, COLUMNS, FORMATS, SIZES, STATIC
from dippm.graph import OpKind


def test_every_column_has_its_place() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert {name: COLUMNS.index(name) for name in COLUMNS} == AT
    assert COLUMNS[: len(STATIC)] == STATIC  # what depends on neither batch nor device stands first


def test_every_kind_of_operator_is_told_apart() -> None:
    assert [name for name in COLUMNS if name.removeprefix("is_") in {kind.value for kind in OpKind}] == [
        f"is_{kind.value}" for kind in OpKind
    ]
    formats = [arithmetic for of_format in FORMATS.values() for arithmetic in of_format]
    assert len(set(formats)) == len(formats)
    assert set(SIZES) <= set(COLUMNS)
