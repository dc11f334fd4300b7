"""Names in tables are broken where their parts end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from dippm.cli.folded_name import FoldedName


def show(name: str, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(FoldedName(name))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("A100-SXM4-40GB", 14, ["A100-SXM4-40GB"]),
        ("1g.5gb@A100-SXM4-40GB", 10, ["1g.5gb@", "A100-SXM4-", "40GB"]),
        ("RTX PRO 6000 Blackwell Max-Q", 22, ["RTX PRO 6000 Blackwell", "Max-Q"]),
        ("RTX PRO 6000 Blackwell Max-Q", 15, ["RTX PRO 6000", "Blackwell Max-Q"]),
        ("RTX PRO 6000 Blackwell Max-Q", 14, ["RTX PRO 6000", "Blackwell", "Max-Q"]),
        ("layers.3.blocks.0.mlp.fc2", 17, ["layers.3.blocks.", "0.mlp.fc2"]),
        ("timm:vit_large_patch16_siglip_gap_384.webli", 22, ["timm:vit_large_", "patch16_siglip_gap_", "384.webli"]),
        # Nothing to break behind.
        ("resnetresnetresnet", 8, ["resnetre", "snetresn", "et"]),
        ("模型模型", 4, ["模型", "模型"]),
        ("", 8, [""]),
    ],
)
def test_where_a_name_is_broken(name: str, width: int, lines: list[str]) -> None:
    assert show(name, width) == lines


def test_a_column_is_as_wide_as_the_name_where_there_is_room() -> None:
    stream = io.StringIO()
    table = Table.grid()
    table.add_row(FoldedName("layers.3.blocks.0.mlp.fc2"), "1")
    Console(file=stream, width=40, color_system=None).print(table)
    assert stream.getvalue().rstrip() == "layers.3.blocks.0.mlp.fc21"


def test_what_could_steer_the_terminal_is_escaped() -> None:
    assert show("\x1b[2Jnet", 40) == ["\\x1b[2Jnet"]
