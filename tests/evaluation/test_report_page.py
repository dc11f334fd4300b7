"""Pages: what stands in a label must not become markup."""

from __future__ import annotations

import base64

from dippm.evaluation.report_page import Section, Table, describe_provenance, render_html, render_markdown

SECTIONS = (
    Section(
        title="A & B",
        text=("<b>one</b>",),
        tables=(Table(header=("name", "value"), rows=(("a|b\nc", "<i>"),), caption="Cap"),),
        plot="drawn",
    ),
    Section(title="No plot", plot="missing"),
)


def test_markdown() -> None:
    assert render_markdown("T", SECTIONS, {"drawn": "p/drawn.svg"}).splitlines() == [
        "# T", "", "## A & B", "", "<b>one</b>", "", "Cap:", "",
        "| name | value |", "|---|---:|", "| a\\|b c | <i> |", "", "![A & B](p/drawn.svg)", "", "## No plot",
    ]  # fmt: skip


def test_html_is_escaped() -> None:
    page = render_html("<T>", SECTIONS, {"drawn": b"<svg/>"})
    assert "<title>&lt;T&gt;</title>" in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<td>&lt;i&gt;</td>" in page
    assert f'src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}"' in page
    assert page.count("<img") == 1


def test_provenance_is_a_table_of_plain_words() -> None:
    found = describe_provenance(
        {
            "command": "dippm evaluate",
            "mixed precision": True,
            "width": 4,
            "software": {"torch": "2.13", "numpy": "2.4"},
        },
        data_hash="abc",
        seed=2,
    )
    assert [tuple(row) for row in found.tables[0].rows] == [
        ("data hash", "abc"),
        ("seed", "2"),
        ("command", "dippm evaluate"),
        ("mixed precision", "true"),
        ("width", "4"),
        ("software", "torch 2.13, numpy 2.4"),
    ]
