"""What a database complains of, in the words and codes of dippm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from dippm.errors import DippmError, UsageError

__all__ = ["translated_errors"]

# SQLite names its errors; PostgreSQL has five-character states. Matched by prefix, longest meaning first.
_MEANINGS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (
        ("SQLITE_FULL", "53100"),
        "store.full",
        "has no room left: the disk is full",
        "Nothing of this label was written, and all earlier ones are safe. Free some space and go on.",
    ),
    (
        ("SQLITE_READONLY", "25006", "42501"),
        "store.read_only",
        "may only be read",
        "Give write permission to it (for a file, to its folder too), or name another store.",
    ),
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "57014"),
        "store.locked",
        "is held by another process",
        "Wait until that process has ended, or name another store.",
    ),
    (
        ("SQLITE_CORRUPT", "XX001", "XX002"),
        "store.damaged",
        "is damaged",
        "Make a new store, and import what was exported from this one.",
    ),
    (
        ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH", "08", "28", "3D", "57P"),
        "store.unreachable",
        "cannot be opened",
        "Check the path or URL, the permissions, and that the server runs.",
    ),
    (
        ("SQLITE_IOERR", "58"),
        "store.io",
        "cannot be read or written: the system reports an input/output error",
        "Check the disk and its quota; all labels committed earlier are safe.",
    ),
)


@contextmanager
def translated_errors(name: str) -> Iterator[None]:
    """Raise what the database raises as a :class:`DippmError`.

    Args:
        name: The store, as shown to people: no password in it.

    Raises:
        UsageError: ``store.not_a_store``.
        DippmError: ``store.full``, ``store.read_only``, ``store.locked``, ``store.damaged``, ``store.unreachable``,
            ``store.io``, or ``store.failed`` for all else.
    """
    try:
        yield
    except SQLAlchemyError as exc:
        raise _translate(exc, name=name) from exc


def _translate(error: SQLAlchemyError, *, name: str) -> DippmError:
    origin = error.orig if isinstance(error, DBAPIError) else None
    state = getattr(origin, "sqlite_errorname", None) or getattr(origin, "sqlstate", None) or ""
    lines = str(origin or error).strip().splitlines() or [type(error).__name__]
    if state.startswith("SQLITE_NOTADB"):
        return UsageError(
            f"The label store '{name}' is none: the file is not an SQLite database ({lines[0]:.300}).",
            code="store.not_a_store",
            cure="Name another file, or one that does not exist yet.",
        )
    for prefixes, code, what, cure in _MEANINGS:
        if state.startswith(prefixes):
            return DippmError(f"The label store '{name}' {what} ({lines[0]:.300}).", code=code, cure=cure)
    # A server that cannot be reached never gets so far as to give a state.
    if origin is not None and not state and isinstance(error, OperationalError | InterfaceError):
        return DippmError(
            f"The label store '{name}' cannot be reached ({lines[0]:.300}).",
            code="store.unreachable",
            cure="Check the URL, and that the server runs.",
        )
    return DippmError(f"The label store '{name}' failed: {lines[0]:.300}", code="store.failed")
