from __future__ import annotations

from pathlib import Path

import pytest

from dippm.frontends.cache_folder import FOLDER_VARIABLE, cache_folder


@pytest.mark.parametrize(
    ("given", "cache_home", "folder"),
    [
        ("/kept", None, Path("/kept/graphs")),
        ("/kept", "/caches", Path("/kept/graphs")),
        ("", "/caches", None),
        (None, "/caches", Path("/caches/dippm/graphs")),
        (None, "", Path("/home/me/.cache/dippm/graphs")),
        (None, None, Path("/home/me/.cache/dippm/graphs")),
    ],
)
def test_who_says_where_things_are_kept(
    given: str | None, cache_home: str | None, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in ((FOLDER_VARIABLE, given), ("XDG_CACHE_HOME", cache_home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_folder("graphs") == folder


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert cache_folder("graphs") is None
