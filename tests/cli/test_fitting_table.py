"""Tables on narrow terminals: no name is left out, and no figure is cut."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from dippm.cli import main
from dippm.cli.fitting_table import FittingTable

_NAMES = ("A100-SXM4-40GB", "1g.5gb", "Tesla T4", "GeForce RTX 3090", "net.onnx", "stem.conv", "TechPowerUp")
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,.]*\d")


def show(table: FittingTable, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def make_table(*, show_header: bool = True) -> FittingTable:
    table = FittingTable("What fits", show_header=show_header)
    table.add_column("device")
    table.add_column("memory,\nMiB", justify="right", no_wrap=True)
    table.add_column("time, ms", justify="right")
    table.add_row("A100", "40,281", Text("1.5\n[1.1 – 2.2]"))
    table.add_row("", "14,912", "")
    return table


def test_where_there_is_room_it_is_a_table() -> None:
    assert show(make_table(), 30) == [
        "What fits",
        "",
        "         memory,",
        " device      MiB     time, ms",
        " ────────────────────────────",
        " A100     40,281          1.5",
        "                  [1.1 – 2.2]",
        "          14,912",
        "",
    ]


def test_what_may_be_broken_is_broken_behind_spaces() -> None:
    lines = show(make_table(), 25)
    assert " A100     40,281     1.5" in lines
    assert "                  [1.1 –" in lines
    assert "                    2.2]" in lines


def test_where_there_is_none_every_row_is_a_block_under_its_name() -> None:
    assert show(make_table(), 24) == [
        "What fits",
        "device: A100",
        "  memory, MiB: 40,281",
        "  time, ms: 1.5  [1.1 –",
        "            2.2]",
        "device: A100",
        "  memory, MiB: 14,912",
        "",
    ]


def test_without_a_header_the_lines_have_no_titles() -> None:
    assert show(make_table(show_header=False), 16) == [
        "What fits",
        "A100",
        "  40,281",
        "  1.5  [1.1 –",
        "  2.2]",
        "A100",
        "  14,912",
        "",
    ]


def test_a_title_is_broken_before_a_figure() -> None:
    assert show(make_table(), 20)[2:4] == ["  memory,     40,281", "  MiB:"]


def test_text_keeps_the_room_that_it_is_given() -> None:
    def make(text: str, width: int | None) -> FittingTable:
        table = FittingTable()
        table.add_column("figure")
        table.add_column("source", overflow="fold", min_width=width)
        table.add_row("memory", text)
        return table

    assert show(make("word " * 9, None), 20)[1] == " figure  source"
    assert show(make("word " * 9, 12), 20)[0] == "figure: memory"
    assert show(make("https://a.page/of/a/vendor", None), 20)[1] == " figure  source"


@pytest.mark.parametrize("width", [40, 50, 60, 70, 75])
@pytest.mark.parametrize(
    "words",
    [
        ["max-batch", "NET", "-m", "training", "-p", "amp", "-d", "T4,RTX 3090,A100", "--price", "T4=0.35"],
        ["fits", "NET", "-d", "A100,T4", "-b", "1,4096"],
        ["predict", "NET", "-d", "1g.5gb@A100,T4", "-b", "1,4096"],
        ["inspect", "NET", "-b", "4096"],
        ["pack", "NET", "--replicas", "NET=3"],
        ["devices"],
        ["devices", "A100"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_narrow_terminal_shows_every_figure_and_name(
    words: list[str],
    width: int,
    net: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(columns: int) -> str:
        for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "xterm"), ("NO_COLOR", "1"), ("COLUMNS", str(columns))):
            monkeypatch.setenv(name, value)
        assert main([word.replace("NET", Path(net).name) for word in words]) == 0
        return capsys.readouterr().out

    shown, narrow = run(200), run(width)
    assert all(len(line) <= width for line in narrow.splitlines())
    assert set(_NUMBER.findall(shown)) <= set(_NUMBER.findall(narrow))
    whole = "".join(narrow.split())
    names = [name for name in _NAMES if name in shown]
    assert names
    assert all(name.replace(" ", "") in whole for name in names)
