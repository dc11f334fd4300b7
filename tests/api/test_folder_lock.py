"""One run at a time in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dippm.api.folder_lock import lock_folder

fcntl = pytest.importorskip("fcntl")


def test_a_second_run_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(BlockingIOError), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_process_that_dies_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dippm.api.folder_lock import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    assert (tmp_path / "lock").exists()
    with lock_folder(tmp_path):
        pass


def test_a_drive_without_locks_lets_everybody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path), lock_folder(tmp_path):
        pass


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), lock_folder(tmp_path / "none"):
        pass
