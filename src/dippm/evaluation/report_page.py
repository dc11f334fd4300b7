"""A report of headings, text, tables and plots as Markdown and as one HTML page that loads nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["Section", "Table", "describe_left_out", "describe_provenance", "render_html", "render_markdown"]

_CSS = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
caption { text-align: left; color: var(--dim); }
.wide { overflow-x: auto; } img { max-width: 100%; background: white; }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table; the first column is text, the others are figures.

    Args:
        header: Names of the columns.
        rows: Cells.
        caption: What it shows, ``""`` for none.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a report.

    Args:
        title: Its heading.
        text: Paragraphs, plain text.
        tables: Tables below them.
        plot: Name of the plot below these, ``""`` for none.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plot: str = ""


def describe_left_out(reasons: Mapping[str, int]) -> Section:
    """How many rows were left out, by reason."""
    rows = [(reason, str(count)) for reason, count in sorted(reasons.items())]
    return Section(title="Left out", tables=(Table(header=("reason", "rows"), rows=rows),))


def describe_provenance(provenance: Mapping[str, Any], *, data_hash: str, seed: int) -> Section:
    """How a report was made, entry by entry."""
    entries = {"data hash": data_hash, "seed": str(seed)}
    entries |= {name: _plain(value) for name, value in provenance.items()}
    return Section(title="How it was made", tables=(Table(header=("what", "value"), rows=list(entries.items())),))


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def render_markdown(title: str, sections: Sequence[Section], plot_files: Mapping[str, str]) -> str:
    """The report as Markdown.

    Args:
        title: Title of the report.
        sections: Its parts.
        plot_files: Plot name to its file, from where the report lies; a plot that is missing is left out.
    """
    lines = [f"# {title}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.text:
            lines += [paragraph, ""]
        for table in section.tables:
            if table.caption:
                lines += [f"{table.caption}:", ""]
            lines.append(_markdown_row(table.header))
            lines.append("|---|" + "---:|" * (len(table.header) - 1))
            lines += [_markdown_row(row) for row in table.rows]
            lines.append("")
        if section.plot in plot_files:
            lines += [f"![{section.title}]({plot_files[section.plot]})", ""]
    return "\n".join(lines)


def render_html(title: str, sections: Sequence[Section], plots: Mapping[str, bytes]) -> str:
    """The report as one page with the plots in it.

    Args:
        title: Title of the report.
        sections: Its parts.
        plots: Plot name to its SVG; a plot that is missing is left out.
    """
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text]
        parts += [_html_table(table) for table in section.tables]
        if section.plot in plots:
            encoded = base64.b64encode(plots[section.plot]).decode()
            parts.append(f'<p><img alt="{escape(section.title)}" src="data:image/svg+xml;base64,{encoded}"></p>')
    return "\n".join([*parts, "</body>\n</html>\n"])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _html_table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )
