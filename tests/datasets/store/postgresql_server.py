"""A PostgreSQL server of the tests' own: made in a temporary folder, gone with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

_START_LIMIT_S = 60.0
_MOST_REPLACED = 2


def _find_binaries() -> Path | None:
    folders = [Path(found).parent] if (found := shutil.which("initdb")) else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders.append(Path("/usr/local/bin"))
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def _find_user() -> dict[str, Any]:
    """Arguments of subprocess: PostgreSQL refuses to run as root, so that root takes another user."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody'")


class PostgresqlServer:
    """One server in a folder of its own, with user ``dippm``; ``socket_folder`` is how to reach it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.socket_folder = str(folder)
        self._folder = folder
        self._process = process

    def find_fault(self) -> str | None:
        """Why nothing connects to the server, with the end of its log; ``None`` where it answers."""
        import psycopg

        try:
            psycopg.connect(host=self.socket_folder, user="dippm", dbname="postgres").close()
        except psycopg.OperationalError as exc:
            state = "is gone" if not self._folder.exists() else "is there"
            log = self._folder / "log"
            return (
                f"{exc}\nprocess {self._process.pid} ended with {self._process.poll()}; its folder {state}\n"
                f"{log.read_text(errors='replace')[-4000:] if log.exists() else 'no log'}"
            )
        return None

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while fault := self.find_fault():
            assert self._process.poll() is None, fault
            assert time.monotonic() < deadline, fault
            time.sleep(0.05)


@contextmanager
def run_server() -> Iterator[PostgresqlServer]:
    """A running server; skips where PostgreSQL is not installed."""
    pytest.importorskip("psycopg")
    binaries = _find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: no initdb and postgres in PATH or /usr/lib/postgresql/*/bin")
    run_as = _find_user()
    # Not pytest's folder: another user must get in, and the path of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="dippm-pg-"))
    try:
        if run_as:
            os.chown(folder, run_as["user"], run_as["group"])
        # A session of its own: a signal to the tests' process group is not meant for the server.
        options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "start_new_session": True, **run_as}
        made = subprocess.run(
            [
                binaries / "initdb",
                "-D",
                folder / "data",
                "-U",
                "dippm",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "-N",
                "--no-locale",
            ],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert made.returncode == 0, made.stderr
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(
                [binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-F"],
                stdout=log,
                stderr=log,
                **options,
            ) as process,
        ):
            try:
                server = PostgresqlServer(folder, process)
                server.wait_until_it_answers()
                yield server
            finally:
                process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
                process.wait(timeout=60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def keep_server_running() -> Iterator[Callable[[], str]]:
    """A function that gives the socket's folder of a server that answers.

    A server that was lost between two tests is named on standard error, with its log, and replaced: the tests are about
    the store, and each makes a database of its own.
    """
    with ExitStack() as running:
        servers = [running.enter_context(run_server())]

        def find_socket() -> str:
            if fault := servers[-1].find_fault():
                assert len(servers) <= _MOST_REPLACED, fault
                print(f"PostgreSQL was lost and is started anew: {fault}", file=sys.__stderr__)
                servers.append(running.enter_context(run_server()))
            return servers[-1].socket_folder

        yield find_socket
