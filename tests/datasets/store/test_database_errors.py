"""What databases raise becomes errors with a code and a cure, whichever database it is."""

from __future__ import annotations

import sqlite3

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy.exc import InterfaceError, NoSuchTableError, OperationalError

from dippm.datasets.store.database_errors import translated_errors
from dippm.errors import DippmError


class ServerError(Exception):
    """As psycopg's: with a state of five characters, or none where no server answered."""

    def __init__(self, sqlstate: str | None, message: str = "the server says no") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class FileError(sqlite3.OperationalError):
    """As SQLite's since Python 3.11: with a name."""

    def __init__(self, name: str) -> None:
        super().__init__("the file says no")
        self.sqlite_errorname = name  # type: ignore[misc]


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (FileError("SQLITE_FULL"), "store.full"),
        (ServerError("53100"), "store.full"),
        (FileError("SQLITE_READONLY_DBMOVED"), "store.read_only"),
        (ServerError("42501"), "store.read_only"),
        (FileError("SQLITE_BUSY_SNAPSHOT"), "store.locked"),
        (ServerError("55P03"), "store.locked"),
        (FileError("SQLITE_NOTADB"), "store.not_a_store"),
        (FileError("SQLITE_CORRUPT"), "store.damaged"),
        (ServerError("XX001"), "store.damaged"),
        (FileError("SQLITE_CANTOPEN"), "store.unreachable"),
        (ServerError("08006"), "store.unreachable"),
        (ServerError("28P01"), "store.unreachable"),
        (ServerError("57P03"), "store.unreachable"),
        (ServerError(None), "store.unreachable"),
        (FileError("SQLITE_IOERR_WRITE"), "store.io"),
        (ServerError("58030"), "store.io"),
        (ServerError("42P01"), "store.failed"),
        (FileError("SQLITE_ERROR"), "store.failed"),
    ],
    ids=lambda value: getattr(value, "sqlite_errorname", None) or getattr(value, "sqlstate", None) or str(value),
)
def test_each_state_has_its_meaning(origin: Exception, code: str) -> None:
    with pytest.raises(DippmError, match=r"'labels\.sqlite'.*says no") as caught, translated_errors("labels.sqlite"):
        raise OperationalError("INSERT INTO labels", {}, origin)
    assert caught.value.code == code
    assert "INSERT" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OperationalError)


def test_the_first_line_of_a_message_is_told() -> None:
    origin = ServerError(None, "connection refused\nIs the server running?")
    with pytest.raises(DippmError, match="connection refused") as caught, translated_errors("db"):
        raise InterfaceError("SELECT 1", {}, origin)
    assert "Is the server" not in str(caught.value)


def test_errors_without_a_database_and_those_of_others() -> None:
    with pytest.raises(DippmError) as caught, translated_errors("db"):
        raise NoSuchTableError("labels")
    assert caught.value.code == "store.failed"
    with pytest.raises(KeyError), translated_errors("db"):
        raise KeyError("not the database's")
