"""Stores of both kinds: an SQLite file, and a database of a real PostgreSQL server."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

_NUMBERS = count()


def _load(name: str) -> ModuleType:
    """A module beside this one; tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def find_postgresql_socket() -> Iterator[Callable[[], str]]:
    """Gives the folder of the socket of a server that answers."""
    with _load("postgresql_server").keep_server_running() as find_socket:
        yield find_socket


@pytest.fixture
def postgresql_target(find_postgresql_socket: Callable[[], str]) -> str:
    """URL of a new, empty database."""
    import psycopg

    name, socket = f"labels_{next(_NUMBERS)}", find_postgresql_socket()
    with psycopg.connect(host=socket, user="dippm", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://dippm@/{name}?host={socket}"


@pytest.fixture
def sqlite_target(tmp_path: Path) -> str:
    """Path of a file that does not exist yet."""
    return str(tmp_path / "labels.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest) -> str:
    """A place for a store, of either kind."""
    return str(request.getfixturevalue(f"{request.param}_target"))
