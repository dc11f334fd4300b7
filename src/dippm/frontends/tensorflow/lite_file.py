"""Whether a TensorFlow Lite file is all there, told by the sizes in it, and its signatures, without TensorFlow."""

from __future__ import annotations

import struct

__all__ = ["find_signatures", "is_cut_short"]

_VECTOR_ENTRY = 4
# Fields of the table Model of tensorflow/compiler/mlir/lite/schema/schema.fbs that are vectors of tables.
_OPERATOR_CODES, _SUBGRAPHS, _BUFFERS, _SIGNATURES = 1, 2, 4, 7
# Fields of the table Buffer: bytes in the tree, or the place and size of bytes behind it.
_DATA, _PLACE, _SIZE = 0, 1, 2
# Fields of the table SignatureDef.
_KEY, _GRAPH = 2, 4


def is_cut_short(content: memoryview) -> bool:
    """Whether a file refers to places beyond its end.

    Its tree is followed as far as to the operators, the graphs and every stored tensor's last byte.

    Args:
        content: The whole file.
    """
    try:
        model = _follow(content, 0)
        for field in (_OPERATOR_CODES, _SUBGRAPHS):
            for table in _tables(content, model, field):
                _field(content, table, 0)
        for table in _tables(content, model, _BUFFERS):
            _check_buffer(content, table)
        find_signatures(content)
    except (struct.error, _BeyondEndError):
        return True
    return False


def find_signatures(content: memoryview) -> dict[str, int]:
    """The names of a file's signatures, and which of its graphs each is; the others are parts of these.

    Args:
        content: The whole file, not cut short.
    """
    found = {}
    for table in _tables(content, _follow(content, 0), _SIGNATURES):
        key, graph = _field(content, table, _KEY), _field(content, table, _GRAPH)
        if key is not None:
            found[_text(content, key)] = 0 if graph is None else _number(content, graph)
    return found


class _BeyondEndError(Exception):
    """Something lies beyond the end of the file."""


def _check_buffer(content: memoryview, table: int) -> None:
    data = _field(content, table, _DATA)
    if data is not None:
        vector = _follow(content, data)
        _require(content, vector + _VECTOR_ENTRY + _number(content, vector))
    place, size = _field(content, table, _PLACE), _field(content, table, _SIZE)
    if place is not None and size is not None:
        _require(content, sum(struct.unpack_from("<Q", content, each)[0] for each in (place, size)))


def _tables(content: memoryview, table: int, field: int) -> list[int]:
    """Where the tables of a vector in a field begin."""
    place = _field(content, table, field)
    if place is None:
        return []
    vector = _follow(content, place)
    count = _number(content, vector)
    first = vector + _VECTOR_ENTRY
    _require(content, first + count * _VECTOR_ENTRY)
    return [_follow(content, first + each * _VECTOR_ENTRY) for each in range(count)]


def _field(content: memoryview, table: int, field: int) -> int | None:
    """Where a table has the value of a field; None where it has none."""
    described = table - struct.unpack_from("<i", content, table)[0]
    if described < 0:
        raise _BeyondEndError
    entry = 4 + 2 * field
    if entry + 2 > struct.unpack_from("<H", content, described)[0]:
        return None
    offset = struct.unpack_from("<H", content, described + entry)[0]
    return table + offset if offset else None


def _follow(content: memoryview, place: int) -> int:
    """Where the offset at a place leads."""
    target = place + _number(content, place)
    _require(content, target)
    return target


def _text(content: memoryview, place: int) -> str:
    """The text that the offset at a place leads to."""
    vector = _follow(content, place)
    end = vector + _VECTOR_ENTRY + _number(content, vector)
    _require(content, end)
    return bytes(content[vector + _VECTOR_ENTRY : end]).decode(errors="replace")


def _number(content: memoryview, place: int) -> int:
    return int(struct.unpack_from("<I", content, place)[0])


def _require(content: memoryview, end: int) -> None:
    if end > len(content):
        raise _BeyondEndError
