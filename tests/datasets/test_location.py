from pathlib import Path

import pytest

from dippm.datasets.location import data_folder
from dippm.errors import UsageError


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    assert data_folder() == tmp_path


def test_a_missing_folder_says_how_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="DIPPM_DATA"):
        data_folder()
