"""``dippm serve``: which settings the service gets, and where its token comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.cli import main
from dippm.server.settings import Settings

TOKEN = "a-token-of-some-length"  # noqa: S105


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIPPM_TOKEN", raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of every service that would have started."""
    calls: list[Settings] = []
    monkeypatch.setattr("dippm.server.serve.serve", calls.append)
    return calls


def test_what_is_left_out_is_the_settings_own(served: list[Settings]) -> None:
    assert main(["serve"]) == 0
    assert served == [Settings()]


def test_every_option_reaches_its_setting(served: list[Settings]) -> None:
    given = {
        "host": "localhost", "port": 0, "workers": 3, "max_upload_mb": 7, "timeout_s": 1.5, "memory_mb": 600,
        "cache_mb": 0, "max_requests": 9, "rate_per_s": 2.5, "drain_s": 0.25, "grace_s": 4.0,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["serve", *words]) == 0
    (settings,) = served
    assert {name: getattr(settings, name) for name in given} == given


def test_the_file_of_the_token_goes_before_the_environment(
    served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-of-the-file\n")
    monkeypatch.setenv("DIPPM_TOKEN", TOKEN)
    assert main(["serve"]) == 0
    assert main(["serve", "--token-file", str(file)]) == 0
    monkeypatch.setenv("DIPPM_TOKEN", "")
    assert main(["serve"]) == 0
    assert [settings.token for settings in served] == [TOKEN, f"{TOKEN}-of-the-file", None]


@pytest.mark.parametrize("content", [None, "ключ-из-двадцати-букв"])
def test_a_token_that_cannot_be_read(
    content: str | None, served: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["serve", "--token-file", str(file)]) == 2
    said = capsys.readouterr().err
    assert "service.token_file" in said
    assert str(file) in said
    assert served == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--port", "65536"), "service.settings"),
        (("--timeout-s", "nan"), "service.settings"),
        (("--host", "0.0.0.0"), "service.token_missing"),  # noqa: S104
    ],
)
def test_wrong_settings_start_nothing(
    words: tuple[str, ...], code: str, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert code in captured.err
    assert served == []
