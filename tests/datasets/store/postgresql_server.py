"""A PostgreSQL server of the tests' own: made in a temporary folder, gone with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_START_LIMIT_S = 60.0


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


@contextmanager
def run_server() -> Iterator[str]:
    """The folder of the socket of a running server with user ``dippm``; skips where PostgreSQL is not installed."""
    psycopg = pytest.importorskip("psycopg")
    binaries = _find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: no initdb and postgres in PATH or /usr/lib/postgresql/*/bin")
    run_as = _find_user()
    # Not pytest's folder: another user must get in, and the path of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="dippm-pg-"))
    try:
        if run_as:
            os.chown(folder, run_as["user"], run_as["group"])
        options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, **run_as}
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
            (folder / "log").open("w+") as log,
            subprocess.Popen(
                [binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-F"],
                stdout=log,
                stderr=log,
                **options,
            ) as server,
        ):
            try:
                deadline = time.monotonic() + _START_LIMIT_S
                while True:
                    try:
                        psycopg.connect(host=str(folder), user="dippm", dbname="postgres").close()
                        break
                    except psycopg.OperationalError:
                        log.seek(0)
                        assert server.poll() is None, log.read()
                        assert time.monotonic() < deadline, log.read()
                        time.sleep(0.05)
                yield str(folder)
            finally:
                server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
                server.wait(timeout=60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
