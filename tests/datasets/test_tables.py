from __future__ import annotations

from pathlib import Path

import pytest

from dippm.datasets.tables import read_records
from dippm.errors import UsageError


def test_rows_go_by_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text('model,note\na,"one, two"\n', encoding="utf-8")
    assert read_records(tmp_path / "table.csv") == [{"model": "a", "note": "one, two"}]


def test_a_missing_table_is_named_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"table\.csv.*Look elsewhere") as caught:
        read_records(tmp_path / "table.csv", cure="Look elsewhere.")
    assert caught.value.code == "data.missing"
