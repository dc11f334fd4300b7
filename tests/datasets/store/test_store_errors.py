"""What can go wrong with a store, by code."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, make_url

from dippm.datasets.store import label_store
from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.errors import DippmError, MissingExtraError, UnsupportedError, UsageError

Maker = Callable[..., Label]


def code_of(target: str | Path) -> str:
    with pytest.raises(DippmError) as caught:
        LabelStore.open(target)
    return caught.value.code


def test_files_that_are_no_store(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, and longer than the hundred bytes of the header of one. " * 20)
    assert code_of(text) == "store.not_a_store"
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    before = other.read_bytes()
    assert code_of(other) == "store.not_a_store"
    assert other.read_bytes() == before
    assert code_of(tmp_path) == "store.unreachable"
    assert code_of(text / "below" / "a.sqlite") == "store.unreachable"


def test_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder") as caught:
        LabelStore.open(tmp_path / "a" / "labels.sqlite")
    assert caught.value.code == "store.unreachable"
    assert not (tmp_path / "a").exists()


def test_a_damaged_file(sqlite_target: str, make_label: Maker) -> None:
    with LabelStore.open(sqlite_target) as store:
        store.add_all(make_label(number) for number in range(200))
    path = Path(sqlite_target)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(DippmError) as caught, LabelStore.open(sqlite_target) as store:
        list(store.labels())
    assert caught.value.code == "store.damaged"


def test_a_full_disk_loses_nothing_and_the_store_goes_on(sqlite_target: str, make_label: Maker) -> None:
    labels = [make_label(number, message="x" * 2000) for number in range(40)]
    with LabelStore.open(sqlite_target) as store:
        # SQLite's own limit on the size of the file fails with the same error as a disk without room.
        limit = event.listens_for(store._engine, "begin")(
            lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 30")
        )
        with pytest.raises(DippmError, match="full") as caught:
            sum(store.add(label) for label in labels)
        assert caught.value.code == "store.full"
        added = len(store)
        assert 0 < added < 40
        assert list(store.labels()) == labels[:added]
        event.remove(store._engine, "begin", limit)

        @event.listens_for(store._engine, "begin")
        def _unlimited(connection: object) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")  # type: ignore[attr-defined]

        assert store.add_all(labels) == 40 - added
        assert list(store.labels()) == labels


def test_a_file_that_may_not_grow(sqlite_target: str, make_label: Maker) -> None:
    """The system refuses to write (here a limit on the size of files, elsewhere a quota or a broken disk)."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); from adding_program import label_of\n"
        "from dippm.datasets.store.label_store import LabelStore; from dippm.errors import DippmError\n"
        "with LabelStore.open(sys.argv[1]) as store:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "    try:\n"
        "        for number in range(2000): store.add(label_of(number))\n"
        "    except DippmError as exc: print(number, exc.code)\n"
    )
    words = [sys.executable, "-c", program, sqlite_target]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    number, code = result.stdout.split()
    assert code == "store.io"
    with LabelStore.open(sqlite_target) as store:
        assert len(store) == int(number) > 0
        assert store.add(make_label())


def test_a_held_file(sqlite_target: str, make_label: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "_LOCK_WAIT_S", 0.2)
    with LabelStore.open(sqlite_target) as store, closing(sqlite3.connect(sqlite_target)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DippmError, match="another process") as caught:
            store.add(make_label())
        assert caught.value.code == "store.locked"
        assert len(store) == 0
        other.execute("ROLLBACK")
        assert store.add(make_label())


def test_a_writer_waits_for_its_turn(sqlite_target: str, make_label: Maker) -> None:
    with LabelStore.open(sqlite_target) as store:
        other = sqlite3.connect(sqlite_target, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, other.rollback)
        release.start()
        assert store.add(make_label())
        release.join()
        other.close()


READING = """
import sys
from dippm.datasets.store.label_store import LabelStore
from dippm.errors import DippmError
sys.path.insert(0, sys.argv[2])
from adding_program import label_of
with LabelStore.open(sys.argv[1]) as store:
    print(len(list(store.labels())))
    try:
        store.add(label_of(77))
    except DippmError as exc:
        print(exc.code)
"""


def test_a_file_that_may_only_be_read(sqlite_target: str, make_label: Maker) -> None:
    with LabelStore.open(sqlite_target) as store:
        store.add(make_label())
    path = Path(sqlite_target)
    if os.geteuid() == 0:
        # root may write everywhere: the driver is asked to open the file for reading instead.
        target = f"sqlite:///file:{path}?mode=ro&uri=true"
    else:
        path.chmod(0o444)
        target = sqlite_target
    words = [sys.executable, "-c", READING, target, str(Path(__file__).parent)]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1", "store.read_only"]


def test_targets_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as bad:
        LabelStore.open("://")
    assert bad.value.code == "store.url"
    with pytest.raises(UnsupportedError) as other:
        LabelStore.open("mysql://host/labels")
    assert other.value.code == "store.database"
    monkeypatch.setattr(label_store, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"dippm\[measure\]"):
        LabelStore.open("labels.sqlite")


def test_no_driver_for_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "find_spec", lambda name: None if name == "psycopg" else object())
    with pytest.raises(MissingExtraError, match=r"dippm\[postgresql\]"):
        LabelStore.open("postgresql://host/labels")


def test_no_server_and_no_password_in_the_message(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(DippmError) as caught:
        LabelStore.open(f"postgresql://user:secret@/labels?host={tmp_path}")
    assert caught.value.code == "store.unreachable"
    assert "secret" not in str(caught.value)


def run_sql(target: str, *statements: str) -> None:
    import psycopg

    url = make_url(target)
    host = str(url.query["host"])
    with psycopg.connect(host=host, user=url.username, dbname=url.database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_postgresql_unknown_database(postgresql_target: str) -> None:
    assert code_of(str(postgresql_target).replace("/labels_", "/nothing_")) == "store.unreachable"


def test_postgresql_tables_of_others(postgresql_target: str, make_label: Maker) -> None:
    run_sql(postgresql_target, "CREATE TABLE songs (title text)")
    with LabelStore.open(postgresql_target) as store:
        assert store.add(make_label())


def test_postgresql_labels_of_another_program(postgresql_target: str) -> None:
    run_sql(postgresql_target, "CREATE TABLE labels (title text)")
    assert code_of(postgresql_target) == "store.not_a_store"


def test_postgresql_read_only(postgresql_target: str, make_label: Maker) -> None:
    read_only = f"{postgresql_target}&options=-c%20default_transaction_read_only%3Don"
    assert code_of(read_only) == "store.read_only"
    LabelStore.open(postgresql_target).close()
    with LabelStore.open(read_only) as store:
        assert list(store.labels()) == []
        with pytest.raises(DippmError) as caught:
            store.add(make_label())
    assert caught.value.code == "store.read_only"


def test_postgresql_full_disk(postgresql_target: str, make_label: Maker) -> None:
    with LabelStore.open(postgresql_target) as store:
        store.add(make_label(0))
        # The server raises its own error for a disk without room.
        run_sql(
            postgresql_target,
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$",
            "CREATE TRIGGER full_disk BEFORE INSERT ON labels EXECUTE FUNCTION fail()",
        )
        with pytest.raises(DippmError) as caught:
            store.add(make_label(1))
        assert caught.value.code == "store.full"
        run_sql(postgresql_target, "DROP TRIGGER full_disk ON labels")
        assert store.add(make_label(1))
        assert len(store) == 2


def test_postgresql_held_table(postgresql_target: str, make_label: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "_LOCK_WAIT_S", 1.0)
    import psycopg

    url = make_url(postgresql_target)
    with LabelStore.open(postgresql_target) as store:
        with psycopg.connect(host=str(url.query["host"]), user="dippm", dbname=url.database) as connection:
            connection.execute("LOCK TABLE labels IN SHARE MODE")
            with pytest.raises(DippmError) as caught:
                store.add(make_label())
            assert caught.value.code == "store.locked"
        assert store.add(make_label())
