from __future__ import annotations

import logging
import sys
import time
from types import SimpleNamespace

import pytest

from dippm.cli import progress
from dippm.cli.output import kept_stdout
from dippm.cli.progress import CampaignLines, CountBar, show_conversions


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that moves its cursor, whichever the tests are started from."""
    monkeypatch.setenv("TERM", "xterm")


def test_without_a_terminal_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    bar = CountBar("rows")
    for done in range(1, 101):
        clock.now += 1.0
        bar.show(done, 100, "bert\x1b[31m")
    bar.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["30 of 100 rows", "60 of 100 rows", "90 of 100 rows"]
    assert "\x1b" not in captured.err
    assert bar.total == 100


def test_on_a_terminal_there_is_a_bar_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    recipe = SimpleNamespace(family="bert", architecture="zoo:hf:bert", batch=4)
    label = SimpleNamespace(measurement=SimpleNamespace(latency_ms=2.5, outcome=SimpleNamespace(value="ok")))
    lines = CampaignLines()
    lines.show(SimpleNamespace(done=3, total=7, recipe=recipe, label=label, remaining_s=12.0))  # type: ignore[arg-type]
    lines.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    for text in ("3/7", "bert batch 4: 2.5 ms", "12 s left"):
        assert text in captured.err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_first_model_is_named_while_it_is_built(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.05)
    lines = CampaignLines("waiting for devices")
    time.sleep(0.3)
    waiting = capsys.readouterr().err
    assert "waiting for devices" in waiting
    recipe = SimpleNamespace(family="vit", architecture="zoo:timm:vit_giant", batch=8)
    lines.show(SimpleNamespace(done=0, total=7, recipe=recipe, label=None, remaining_s=60.0))  # type: ignore[arg-type]
    time.sleep(0.3)
    building = capsys.readouterr().err
    lines.close()
    assert "building timm:vit_giant for batch 8, 60 s left" in building
    if not is_terminal:
        assert waiting == "rows: waiting for devices ...\n"
        assert building == "0 of 7 rows, building timm:vit_giant for batch 8, 60 s left\n"


def test_a_terminal_has_the_bar_before_anything_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    bar = CountBar("rows", "building vgg\x1b[31m, batch 8")
    shown = capsys.readouterr()
    for text in ("rows", "0/?", "building vgg\\x1b[31m, batch 8"):
        assert text in shown.err
    bar.close()
    erased = capsys.readouterr()
    assert (shown.out, erased.out) == ("", "")
    assert "\x1b[1A\x1b[2K" in erased.err  # one line up, and empty: nothing was counted
    bar = CountBar("rows")
    bar.show(2, 2)
    bar.close()
    assert "\x1b[1A\x1b[2K" not in capsys.readouterr().err.partition("2/2")[2]


def test_without_a_terminal_a_line_says_early_what_is_under_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.05)
    bar = CountBar("rows", "building vgg")
    time.sleep(0.3)
    bar.close()
    assert capsys.readouterr() == ("", "rows: building vgg ...\n")
    bar = CountBar("rows", "building vgg")
    bar.show(1, 9, "bert")
    time.sleep(0.3)
    bar.close()
    assert capsys.readouterr() == ("", "1 of 9 rows, bert\n")
    CountBar("rows").close()
    time.sleep(0.3)
    assert capsys.readouterr() == ("", "")


def test_one_bar_is_shown_at_a_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.05)
    models, trainings = CountBar("models"), CountBar("trainings")
    time.sleep(0.3)
    assert capsys.readouterr().err == "models: starting ...\n"
    trainings.begin("reading graphs")
    time.sleep(0.3)
    models.close()
    trainings.close()
    assert capsys.readouterr().err == "trainings: reading graphs ...\n"


def test_a_bar_leaves_stdout_to_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    stdout, stderr = sys.stdout, sys.stderr
    bar = CountBar("rows")
    with kept_stdout("auto"):
        bar.show(1, 2)
        later = CountBar("models")
        later.show(1, 2)
    bar.close()
    later.close()
    assert (sys.stdout, sys.stderr) == (stdout, stderr)


def test_a_conversion_that_takes_long_is_told_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("dippm.frontends.conversion")
    before, level = list(logger.handlers), logger.level
    try:
        for _ in range(2):
            show_conversions()
        child = logging.getLogger("dippm.frontends.conversion.converter_process")
        child.info("Converting '%s'.", "m\x1b[31m.keras")
        child.debug("not for people")
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
    assert capsys.readouterr() == ("", "Converting 'm\\x1b[31m.keras'.\n")
