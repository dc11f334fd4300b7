"""The label store: every measurement in one table, in an SQLite file or in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dippm.datasets.store.label import Label
from dippm.datasets.store.row import SCHEMA_VERSION, label_to_row, row_to_label
from dippm.errors import DippmError, MissingExtraError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

__all__ = ["LabelStore"]

_LOCK_WAIT_S = 60.0
_PAGE = 500


class LabelStore:
    """Labels, one per :attr:`Label.key`, in the order in which they were added.

    Every change is one transaction: after a kill, a power cut or a full disk the store holds each label wholly or not
    at all. Any number of processes may share it; writers take turns.

    An SQLite file keeps SQLite's rollback journal rather than the write-ahead log: between two transactions the file
    is complete by itself, so that it may be copied, and it can be read where nothing may be written. The log would buy
    speed that a few labels per second do not need.

    Example:
        >>> with LabelStore.open("labels.sqlite") as store:
        ...     store.add(label)
    """

    def __init__(self, engine: Engine, *, name: str) -> None:
        self._engine = engine
        self._name = name

    @classmethod
    def open(cls, target: str | Path) -> LabelStore:
        """Open a store, or make it where there is none.

        Args:
            target: Path of an SQLite file, or a URL such as ``postgresql+psycopg://user@host/database``.

        Raises:
            UsageError: ``store.url`` where the URL cannot be read, ``store.not_a_store``, or ``store.unreachable``
                where there is no folder for the file.
            UnsupportedError: ``store.database`` for a database that is neither SQLite nor PostgreSQL.
            MissingExtraError: SQLAlchemy or psycopg is not installed.
            DippmError: ``store.schema`` (made by another version), ``store.read_only``, ``store.locked``,
                ``store.full``, ``store.damaged``, ``store.unreachable`` or ``store.io``.
        """
        if find_spec("sqlalchemy") is None:
            raise MissingExtraError(package="sqlalchemy", extra="measure", purpose="keep labels")
        url = _read_url(target)
        name = url.database if url.drivername == "sqlite" else url.render_as_string(hide_password=True)
        store = cls(_make_engine(url), name=name or str(target))
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> LabelStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, label: Label) -> bool:
        """Add one label in a transaction of its own: once this returns, the label is on the disk.

        Returns:
            True where it is new; False, with nothing changed, where a label of the same key is there already.

        Raises:
            UsageError: ``label.not_finite``.
            DippmError: ``store.full``, ``store.read_only``, ``store.locked`` or ``store.io``; the store stays usable.
        """
        return self._insert([label]) == 1

    def add_all(self, labels: Iterable[Label]) -> int:
        """Add many labels, some hundreds to a transaction; much faster than one by one.

        Returns:
            How many were new.

        Raises:
            UsageError: As :meth:`add`; transactions before the failing one stay.
            DippmError: As :meth:`add`; transactions before the failing one stay.
        """
        remaining = iter(labels)
        added = 0
        while page := list(islice(remaining, _PAGE)):
            added += self._insert(page)
        return added

    def set_graph_hash(self, model_key: str, graph_hash: str) -> int:
        """Set the graph hash of all labels of a model.

        Returns:
            How many labels the model has.
        """
        from dippm.datasets.store.schema import LABELS

        with self._writing() as connection:
            result = connection.execute(
                LABELS.update().where(LABELS.c.model_key == model_key).values(graph_hash=graph_hash)
            )
            return result.rowcount

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the labels of these keys, in one transaction; those that are not there are passed over."""
        from sqlalchemy import bindparam

        from dippm.datasets.store.schema import LABELS

        rows = [{"gone": key} for key in keys]
        if rows:
            with self._writing() as connection:
                connection.execute(LABELS.delete().where(LABELS.c.key == bindparam("gone")), rows)

    def keys(self) -> set[str]:
        """Keys of all labels."""
        from sqlalchemy import select

        from dippm.datasets.store.schema import LABELS

        with self._reading() as connection:
            return set(connection.execute(select(LABELS.c.key)).scalars())

    def __contains__(self, key: object) -> bool:
        from sqlalchemy import select

        from dippm.datasets.store.schema import LABELS

        with self._reading() as connection:
            found = connection.execute(select(LABELS.c.id).where(LABELS.c.key == str(key))).first()
        return found is not None

    def __len__(self) -> int:
        from sqlalchemy import func, select

        from dippm.datasets.store.schema import LABELS

        with self._reading() as connection:
            return int(connection.execute(select(func.count()).select_from(LABELS)).scalar_one())

    def __bool__(self) -> bool:
        # An open store is a store, though it be empty.
        return True

    def labels(self, *, device: str | None = None, source: str | None = None) -> Iterator[Label]:
        """Labels in the order in which they were added, those that match every value given.

        They are read a page at a time, each in a transaction of its own, so that a slow reader holds up no writer; a
        label added meanwhile is met too.
        """
        from sqlalchemy import select

        from dippm.datasets.store.schema import LABELS

        query = select(LABELS).order_by(LABELS.c.id).limit(_PAGE)
        if device is not None:
            query = query.where(LABELS.c.device == device)
        if source is not None:
            query = query.where(LABELS.c.source == source)
        last = 0
        while True:
            with self._reading() as connection:
                page: Sequence[Any] = connection.execute(query.where(LABELS.c.id > last)).mappings().all()
            for row in page:
                yield row_to_label(row, name=f"Row {row['id']} of '{self._name}'")
            if len(page) < _PAGE:
                return
            last = page[-1]["id"]

    def _insert(self, labels: Sequence[Label]) -> int:
        from dippm.datasets.store.schema import LABELS

        if self._engine.dialect.name == "sqlite":
            from sqlalchemy.dialects.sqlite import insert as sqlite_insert

            statement: Any = sqlite_insert(LABELS)
        else:
            from sqlalchemy.dialects.postgresql import insert as postgresql_insert

            statement = postgresql_insert(LABELS)
        statement = statement.on_conflict_do_nothing(index_elements=[LABELS.c.key]).returning(LABELS.c.id)
        rows = [label_to_row(label) for label in labels]
        with self._writing() as connection:
            return len(connection.execute(statement, rows).all())

    def _prepare(self) -> None:
        """Check that this is a store of this version, or make the tables."""
        with self._reading() as connection:
            is_made = self._check(connection)
        if not is_made:
            from dippm.datasets.store.schema import METADATA, VERSION

            # Another process may have made them since: looked at once more, now that no other can write.
            with self._writing(lock_labels=False) as connection:
                if not self._check(connection):
                    METADATA.create_all(connection)
                    connection.execute(VERSION.insert().values(schema_version=SCHEMA_VERSION))

    def _check(self, connection: Connection) -> bool:
        """Whether the tables are there; an error where something else is."""
        from sqlalchemy import inspect, select

        from dippm.datasets.store.schema import LABELS, VERSION

        tables = inspect(connection).get_table_names()
        if VERSION.name not in tables:
            # A PostgreSQL database may hold other tables beside; an SQLite file is one program's own.
            if LABELS.name in tables or (tables and connection.dialect.name == "sqlite"):
                raise UsageError(
                    f"The database '{self._name}' is no label store: it holds the tables "
                    f"{', '.join(sorted(tables)[:5])} and not '{VERSION.name}'.",
                    code="store.not_a_store",
                    cure="Name another database, or a file that does not exist yet.",
                )
            return False
        version = connection.execute(select(VERSION.c.schema_version)).scalar()
        if version != SCHEMA_VERSION:
            raise DippmError(
                f"The label store '{self._name}' has schema {version}; this dippm reads schema {SCHEMA_VERSION}.",
                code="store.schema",
                cure="Use the dippm that made it to export its labels."
                if version is None or version < SCHEMA_VERSION
                else "Update dippm.",
            )
        return True

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        from dippm.datasets.store.database_errors import translated_errors

        with translated_errors(self._name), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self, *, lock_labels: bool = True) -> Iterator[Connection]:
        """A transaction that no other writer shares: ids then grow in the order of commits, and none can deadlock."""
        from sqlalchemy import text

        from dippm.datasets.store.database_errors import translated_errors

        with translated_errors(self._name), self._engine.execution_options(is_writing=True).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_S:.0f}s'"))
                connection.execute(
                    text("LOCK TABLE labels IN SHARE ROW EXCLUSIVE MODE")
                    if lock_labels
                    else text("SELECT pg_advisory_xact_lock(hashtext('dippm label store'))")
                )
            yield connection


def _read_url(target: str | Path) -> URL:
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    if isinstance(target, Path) or "://" not in target:
        return URL.create("sqlite", database=str(target))
    try:
        url = make_url(target)
    except (ArgumentError, ValueError) as exc:
        raise UsageError(
            "This is not the URL of a database.",
            code="store.url",
            cure="Write it as postgresql+psycopg://user@host/database, or give the path of a file.",
        ) from exc
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UnsupportedError(
            f"Labels are kept in SQLite or PostgreSQL. Got a URL of '{url.drivername}' instead.",
            code="store.database",
            cure="Write it as postgresql+psycopg://user@host/database, or give the path of a file.",
        )
    if url.drivername == "postgresql+psycopg" and find_spec("psycopg") is None:
        raise MissingExtraError(package="psycopg", extra="postgresql", purpose="keep labels in PostgreSQL")
    return url


def _make_engine(url: URL) -> Engine:
    from sqlalchemy import create_engine, event

    if url.drivername != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    # A URI names its file in a way of its own, and SQLite says what is wrong with it.
    if url.database and not url.database.startswith("file:"):
        folder = Path(url.database).parent
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder '{folder}' for the label store '{Path(url.database).name}'.",
                code="store.unreachable",
                cure="Make it, or name another store.",
            )
    engine = create_engine(url, connect_args={"timeout": _LOCK_WAIT_S})

    # Python's sqlite3 opens transactions late and not around CREATE TABLE; here SQLAlchemy alone says when they begin.
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        # EXTRA: a committed label outlives a power cut too, not only a kill.
        connection.execute("PRAGMA synchronous = EXTRA")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine
