"""What is predicted of a collection; the command's own tests are of the labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm import api
from dippm.api import predicted_collections
from dippm.errors import UnsupportedError, UsageError


def test_what_cannot_run_is_refused_before_a_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_collections, "cache_graphs", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UnsupportedError) as caught:
        api.predict_collection(
            "cpu-small", tmp_path / "p.parquet", cache=tmp_path, device="A100", runtime="compile", software="torch 1.12"
        )
    assert caught.value.code == "software.impossible"


def test_a_collection_of_which_nothing_can_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_collections, "cache_graphs", lambda *_, **__: [])
    with pytest.raises(UsageError) as caught:
        api.predict_collection("cpu-small", tmp_path / "p.parquet", cache=tmp_path / "graphs", device="A100", limit=2)
    assert caught.value.code == "labels.none"
    assert not (tmp_path / "p.parquet").exists()
