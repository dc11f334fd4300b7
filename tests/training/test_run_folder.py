"""A folder that cannot be written to is the user's to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.errors import UsageError
from dippm.training.run_folder import writing_to


def test_the_folder_is_made_and_written_to(tmp_path: Path) -> None:
    with writing_to(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "c").write_text("text")
    assert (tmp_path / "a" / "b" / "c").read_text() == "text"


def test_what_is_no_folder_and_what_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, path in ((tmp_path / "file", "c"), (tmp_path, "missing/c")):
        with pytest.raises(UsageError, match="cannot be written to") as caught, writing_to(folder):
            (folder / path).write_text("text")
        assert (caught.value.code, caught.value.cure) == ("train.unwritable", "Name another folder.")
