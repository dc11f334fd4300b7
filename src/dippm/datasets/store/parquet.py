"""Labels as a Parquet file: small, for git and for other programs; read back without loss."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.datasets.store.label import Label
from dippm.datasets.store.row import COLUMNS, SCHEMA_VERSION, label_to_row, row_to_label
from dippm.errors import DippmError, MissingExtraError, UsageError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["export_parquet", "read_parquet"]

_VERSION_KEY = b"dippm.labels.schema"
_ROWS_PER_GROUP = 20_000
_MOST_NAMED = 8
# These differ from row to row, where a dictionary would only add to the size.
_UNREPEATED = ("key", "measured_at")


def export_parquet(labels: Iterable[Label], path: str | Path) -> int:
    """Write labels to a Parquet file, in their order.

    The file appears whole or not at all: it is written beside its place and renamed. Equal labels give equal bytes
    under one version of pyarrow.

    Returns:
        How many labels were written.

    Raises:
        DippmError: ``parquet.unwritable``.
        MissingExtraError: pyarrow is not installed.
    """
    _need_pyarrow()
    import pyarrow.parquet

    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    schema = _schema()
    remaining = iter(labels)
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            with pyarrow.parquet.ParquetWriter(
                stream,
                schema,
                compression="zstd",
                compression_level=9,
                use_dictionary=[column.name for column in COLUMNS if column.name not in _UNREPEATED],
            ) as writer:
                while rows := [label_to_row(label) for label in islice(remaining, _ROWS_PER_GROUP)]:
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                    count += len(rows)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except OSError as exc:
        raise DippmError(
            f"The Parquet file '{path}' cannot be written: {exc.strerror or exc}.",
            code="parquet.unwritable",
            cure="Check the folder, its permissions and the room on the disk.",
        ) from exc
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def read_parquet(path: str | Path) -> Iterator[Label]:
    """Labels of a Parquet file, in their order, some thousands in memory at a time.

    Raises:
        UsageError: ``parquet.missing``, ``parquet.unreadable``, ``parquet.not_labels`` for another Parquet file,
            ``parquet.schema`` for one of another version; all at the call. While it runs ``parquet.unreadable`` where
            the file is damaged further in, or ``label.invalid``.
        MissingExtraError: pyarrow is not installed.
    """
    _need_pyarrow()
    path = Path(path)
    _check(path)
    return _read(path)


def _check(path: Path) -> None:
    import pyarrow.parquet

    if not path.is_file():
        raise UsageError(f"There is no file '{path}'.", code="parquet.missing")
    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as exc:
        raise _unreadable(path, exc) from exc
    # Who saves a table again may lose what dippm says of it; the columns of this version are labels all the same.
    version = (schema.metadata or {}).get(_VERSION_KEY, _version())
    if version != _version():
        raise UsageError(
            f"The Parquet file '{path}' has schema {version.decode(errors='replace')}; "
            f"this dippm reads schema {SCHEMA_VERSION}.",
            code="parquet.schema",
            cure="Use a dippm of the version that wrote it.",
        )
    missing = [column.name for column in COLUMNS if column.name not in schema.names]
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise UsageError(
            f"The Parquet file '{path}' holds no labels of dippm: it lacks the columns "
            f"{', '.join(missing[:_MOST_NAMED])}{more}.",
            code="parquet.not_labels",
            cure="Name a file that `dippm dataset export` wrote, or one with all of its columns.",
        )


def _read(path: Path) -> Iterator[Label]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=2000):
                for row in batch.to_pylist():
                    number += 1
                    yield row_to_label(row, name=f"Row {number} of '{path}'")
    except (pyarrow.ArrowException, OSError) as exc:
        raise _unreadable(path, exc) from exc


def _schema() -> pyarrow.Schema:
    import pyarrow

    types: dict[type, Any] = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    return pyarrow.schema(
        [pyarrow.field(column.name, types[column.kind], nullable=column.is_optional) for column in COLUMNS],
        metadata={_VERSION_KEY: _version()},
    )


def _version() -> bytes:
    return str(SCHEMA_VERSION).encode()


def _need_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise MissingExtraError(package="pyarrow", extra="measure", purpose="read and write Parquet files")


def _unreadable(path: Path, error: Exception) -> UsageError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UsageError(f"The file '{path}' cannot be read as Parquet: {lines[0]:.300}", code="parquet.unreadable")
