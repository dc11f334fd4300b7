"""The parts of a sweep's table: files beside it, each written whole, merged into the table at the end."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dippm.api.sweep_plan import SweepPlan
from dippm.api.sweep_rows import COLUMNS, make_schema
from dippm.errors import DippmError, UsageError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SweepParts"]

_PLAN = "plan.json"
_LOCK = "lock"
_SUFFIX = ".parquet"
_CSV = ".csv"
_ROWS_PER_GROUP = 65_536
_SETTINGS_KEY = b"dippm.sweep"
_SEPARATOR = "; "


class SweepParts:
    """The folder of a sweep's parts; one run at a time works in it.

    Args:
        out: The table, ``.parquet`` or ``.csv``.
        plan: What the sweep is going to do.

    Raises:
        UsageError: ``sweep.out`` where the table's name has another ending, or its folder is not there.
    """

    def __init__(self, out: Path, plan: SweepPlan) -> None:
        if out.suffix not in (_SUFFIX, _CSV):
            raise UsageError(
                f"The table must be named {_SUFFIX} or {_CSV}. Got '{out}' instead.",
                code="sweep.out",
            )
        if not out.parent.is_dir():
            raise UsageError(f"There is no folder '{out.parent}' for the table '{out.name}'.", code="sweep.out")
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self._plan = plan

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Work in the folder; it is made where it is missing, and stays unless the table was written or nothing was.

        Raises:
            UsageError: ``sweep.exists``, ``sweep.unfinished``, ``sweep.changed`` where the sweep to go on with is
                another one, ``sweep.running``.
            DippmError: ``sweep.unwritable``.
        """
        plan_file = self.folder / _PLAN
        is_there = plan_file.is_file()
        if is_there and not resume:
            raise UsageError(
                f"An unfinished sweep lies in '{self.folder}'.",
                code="sweep.unfinished",
                cure="Go on with it by --resume (resume=True), or remove that folder.",
            )
        if not is_there and self.out.exists():
            raise UsageError(
                f"There is a file '{self.out}' already.", code="sweep.exists", cure="Name another table, or remove it."
            )
        with _writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        with _locked(self.folder):
            if is_there:
                self._check(plan_file)
                for unfinished in self.folder.glob("*.tmp"):
                    unfinished.unlink(missing_ok=True)
            else:
                with _writing(self.folder):
                    _write_whole(plan_file, lambda stream: stream.write(self._plan.to_text().encode()))
            try:
                yield
            finally:
                if not self.out.exists() and not any(self.folder.glob(f"*{_SUFFIX}")):
                    shutil.rmtree(self.folder, ignore_errors=True)

    def missing(self) -> list[int]:
        """Parts that are still to be written, in order."""
        there = {path.name for path in self.folder.glob(f"*{_SUFFIX}")}
        return [part for part in range(self._plan.parts) if self._path(part).name not in there]

    def write(self, part: int, tables: Sequence[pyarrow.Table]) -> None:
        """Write a part.

        Args:
            part: Which one.
            tables: The rows of its tasks, in order.

        Raises:
            DippmError: ``sweep.unwritable``.
        """
        import pyarrow
        import pyarrow.parquet

        rows = pyarrow.concat_tables(tables)
        with _writing(self.folder):
            _write_whole(self._path(part), lambda stream: pyarrow.parquet.write_table(rows, stream, compression="zstd"))

    def merge(self, see: Callable[[pyarrow.Table], None]) -> None:
        """Write the table from all parts, in the order of the tasks, and remove them.

        Args:
            see: Shown all rows, some thousands at a time.

        Raises:
            DippmError: ``sweep.unwritable``; ``sweep.damaged`` where a part cannot be read.
        """
        write = self._write_csv if self.out.suffix == _CSV else self._write_parquet
        with _writing(self.out):
            _write_whole(self.out, lambda stream: write(stream, see))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_parquet(self, stream: IO[bytes], see: Callable[[pyarrow.Table], None]) -> None:
        import pyarrow
        import pyarrow.parquet

        described = {_SETTINGS_KEY: self._plan.to_summary().encode()}
        schema = make_schema().with_metadata(described)
        with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
            waiting: list[pyarrow.Table] = []
            for rows in self._read_parts():
                see(rows)
                waiting.append(rows)
                if sum(map(len, waiting)) >= _ROWS_PER_GROUP:
                    writer.write_table(pyarrow.concat_tables(waiting).cast(schema))
                    waiting = []
            if waiting:
                writer.write_table(pyarrow.concat_tables(waiting).cast(schema))

    def _write_csv(self, stream: IO[bytes], see: Callable[[pyarrow.Table], None]) -> None:
        import io

        text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rows in self._read_parts():
            see(rows)
            writer.writerows(map(_csv_cells, rows.to_pylist()))
        text.detach()

    def _read_parts(self) -> Iterator[pyarrow.Table]:
        import pyarrow
        import pyarrow.parquet

        for part in range(self._plan.parts):
            path = self._path(part)
            try:
                with pyarrow.parquet.ParquetFile(path) as file:
                    yield file.read()
            except (pyarrow.ArrowException, OSError) as exc:
                raise DippmError(
                    f"The part '{path}' cannot be read: {exc}.",
                    code="sweep.damaged",
                    cure="Remove it, and go on with --resume (resume=True).",
                ) from exc

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:08d}{_SUFFIX}"

    def _check(self, plan_file: Path) -> None:
        try:
            differences = self._plan.differences(plan_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            differences = ["its plan cannot be read"]
        if differences:
            raise UsageError(
                f"The sweep that lies in '{self.folder}' is another one: {'; '.join(differences)}.",
                code="sweep.changed",
                cure="Ask as before to go on with it, or remove that folder.",
            )


def _csv_cells(row: dict[str, Any]) -> list[object]:
    return [_SEPARATOR.join(cell) if isinstance(cell, list) else cell for cell in row.values()]


def _write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that is there whole or not at all, also when the machine stops."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise DippmError(
            f"'{path}' cannot be written: {exc.strerror or exc}.",
            code="sweep.unwritable",
            cure="Make room, and go on with --resume (resume=True): the parts that are written stay.",
        ) from exc


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out until this one ends, however it does."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with _writing(folder):
        stream = (folder / _LOCK).open("wb")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise UsageError(
                f"Another run is at work on the sweep in '{folder}'.", code="sweep.running", cure="Wait until it ends."
            ) from exc
        yield
