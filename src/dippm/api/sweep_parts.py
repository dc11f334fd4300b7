"""The parts of a sweep's table: files beside it, each written whole, merged into the table at the end."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_UNFINISHED = ".tmp"
_SUFFIX = ".parquet"
_DIGITS = 8
_CSV = ".csv"
_ROWS_PER_GROUP = 8_192
_SETTINGS_KEY = b"dippm.sweep"
_PLAN_KEY = b"dippm.sweep.plan"  # in a part and in the table: whose they are
_SEPARATOR = "; "
_NEVER_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENAMETOOLONG})


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
        self._hash = plan.to_hash().encode()

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Work in the folder; it is made where it is missing, and stays unless the table was written or nothing was.

        Raises:
            UsageError: ``sweep.exists``, ``sweep.unfinished``, ``sweep.changed`` where the sweep to go on with is
                another one, ``sweep.running``.
            DippmError: ``sweep.unwritable``.
        """
        with _locked(self.folder):
            self._begin(resume=resume)
            try:
                yield
            finally:
                if not self._written():
                    self._clear()

    def is_finished(self) -> bool:
        """Whether the table is there, and says that this very plan made it; a CSV table does not say what made it.

        What a kill left of parts that were already merged is removed.

        Raises:
            UsageError: ``sweep.running``.
        """
        if self.out.suffix == _CSV or not self._is_own(self.out):
            return False
        if self.folder.exists():
            with _locked(self.folder):
                if (self.folder / _PLAN).is_file():
                    return False
                self._clear()
        return True

    def read_table(self, see: Callable[[pyarrow.Table], None]) -> None:
        """Show all rows of a table that is finished, some thousands at a time.

        Raises:
            DippmError: ``sweep.damaged`` where it cannot be read.
        """
        for rows in _read_rows(self.out, cure="Remove it, and ask again."):
            see(rows)

    def missing(self) -> list[int]:
        """Parts that are still to be written, in order; one of another sweep, or that cannot be read, is no part."""
        there = {path.name for path in self._written() if self._is_own(path)}
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

        rows = pyarrow.concat_tables(tables).replace_schema_metadata({_PLAN_KEY: self._hash})
        with _writing(self.folder):
            _write_whole(
                self._path(part),
                lambda stream: pyarrow.parquet.write_table(rows, stream, compression="zstd"),
                folder=self.folder,
            )

    def merge(self, see: Callable[[pyarrow.Table], None]) -> None:
        """Write the table from all parts, in the order of the tasks, and remove them.

        Args:
            see: Shown all rows, some thousands at a time.

        Raises:
            DippmError: ``sweep.unwritable``; ``sweep.damaged`` where a part cannot be read.
        """
        write = self._write_csv if self.out.suffix == _CSV else self._write_parquet
        with _writing(self.out):
            _write_whole(self.out, lambda stream: write(stream, see), folder=self.folder)
        self._clear()

    def _write_parquet(self, stream: IO[bytes], see: Callable[[pyarrow.Table], None]) -> None:
        import pyarrow
        import pyarrow.parquet

        described = {_SETTINGS_KEY: self._plan.to_summary().encode(), _PLAN_KEY: self._hash}
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
        for part in range(self._plan.parts):
            yield from _read_rows(self._path(part), cure="Remove it, and go on with --resume (resume=True).")

    def _begin(self, *, resume: bool) -> None:
        """Look at what an earlier run left, and make the folder ready for this one."""
        plan_file = self.folder / _PLAN
        if plan_file.is_file():
            if not resume:
                raise UsageError(
                    f"An unfinished sweep lies in '{self.folder}'.",
                    code="sweep.unfinished",
                    cure="Go on with it by --resume (resume=True), or remove that folder.",
                )
            self._check(plan_file)
            _remove(self.folder.glob(f"*{_UNFINISHED}"))
            return
        # Nothing says what parts without a plan are parts of: their table was written, or their run was another one.
        self._clear()
        if self.out.exists():
            raise UsageError(
                f"There is a file '{self.out}' already{self._whose_table() if resume else ''}.",
                code="sweep.exists",
                cure="Name another table, or remove it.",
            )
        with _writing(self.folder):
            _write_whole(plan_file, lambda stream: stream.write(self._plan.to_text().encode()), folder=self.folder)

    def _whose_table(self) -> str:
        """Why the table that is there is not taken for the one to go on with."""
        if self.out.suffix == _CSV:
            return f", and a {_CSV} table does not say which sweep made it (one of {_SUFFIX} does)"
        return ", and this sweep, with models, settings and versions as they are now, did not make it"

    def _clear(self) -> None:
        """Remove what was written; the plan first, without which the rest counts for nothing."""
        _remove([self.folder / _PLAN, *self._written(), *self.folder.glob(f"*{_UNFINISHED}")])

    def _written(self) -> list[Path]:
        return list(self.folder.glob(f"{'[0-9]' * _DIGITS}{_SUFFIX}"))

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:0{_DIGITS}d}{_SUFFIX}"

    def _is_own(self, path: Path) -> bool:
        """Whether a part, or the table, says that it is of this sweep."""
        import pyarrow
        import pyarrow.parquet

        try:
            described = pyarrow.parquet.read_schema(path).metadata or {}
        except (pyarrow.ArrowException, OSError):
            return False
        return bool(described.get(_PLAN_KEY) == self._hash)

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


def _read_rows(path: Path, *, cure: str) -> Iterator[pyarrow.Table]:
    """The rows of a part or of the table, some thousands at a time.

    Raises:
        DippmError: ``sweep.damaged``.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_ROWS_PER_GROUP, use_threads=False):
                yield pyarrow.Table.from_batches([batch])
    except (pyarrow.ArrowException, OSError) as exc:
        raise DippmError(f"'{path}' cannot be read: {exc}.", code="sweep.damaged", cure=cure) from exc


def _csv_cells(row: dict[str, Any]) -> list[object]:
    return [_SEPARATOR.join(cell) if isinstance(cell, list) else cell for cell in row.values()]


def _write_whole(path: Path, write: Callable[[IO[bytes]], object], *, folder: Path) -> None:
    """Write a file that is there whole or not at all, also when the machine stops; until then it lies in the folder."""
    unfinished = folder / f"{path.name}.{os.getpid()}{_UNFINISHED}"
    try:
        with unfinished.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


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
        words = f"'{path}' cannot be written: {exc.strerror or exc}."
        if exc.errno in _NEVER_WRITABLE:
            raise UsageError(words, code="sweep.out", cure="Name a table where you may write.") from exc
        raise DippmError(
            words,
            code="sweep.unwritable",
            cure="Make room, and go on with --resume (resume=True): the parts that are written stay.",
        ) from exc


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder until this one ends, however it does; who leaves it empty removes it."""
    stream = _lock(folder)
    try:
        yield
    finally:
        if {path.name for path in folder.glob("*")} <= {_LOCK}:
            _remove([folder / _LOCK])
            with suppress(OSError):
                folder.rmdir()
        stream.close()


def _lock(folder: Path) -> IO[bytes]:
    """Make the folder and its lock, and take that."""
    while True:
        with _writing(folder):
            folder.mkdir(exist_ok=True)
            try:
                stream = (folder / _LOCK).open("wb")
            except FileNotFoundError:  # whoever had it removed the folder just now
                continue
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            stream.close()
            _remove([folder / _LOCK])
            return stream
        except BlockingIOError as exc:
            stream.close()
            raise UsageError(
                f"Another run is at work on the sweep in '{folder}'.", code="sweep.running", cure="Wait until it ends."
            ) from exc
        except OSError:  # the drive has no locks: everybody is let in
            return stream
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(folder / _LOCK)):
                return stream
        stream.close()  # whoever had it removed it meanwhile
