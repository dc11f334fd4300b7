"""A name in a table, which is broken where its parts end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dippm.cli.output import make_printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

__all__ = ["FoldedName"]

_WORD = re.compile(r"\S*\s*")
_PART = re.compile(r"[^\s./:@_-]*[\s./:@_-]*")


class FoldedName:
    """The name of a model, a module or a device: whole where there is room, else broken behind a space.

    A word that is wider than the column is broken behind one of ``./:@_-``.

    Rich itself breaks behind spaces alone, and in the middle of what has none.

    Args:
        name: The name; what could steer a terminal is escaped.
        style: Rich's style of it.
    """

    def __init__(self, name: str, *, style: str = "") -> None:
        self._name = make_printable(name)
        self._style = style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.cells import cell_len
        from rich.measure import Measurement

        widest = max(cell_len(part.rstrip()) for part in _PART.findall(self._name))
        return Measurement(widest, cell_len(self._name)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text("\n".join(self._lines(options.max_width)), style=self._style)

    def _lines(self, width: int) -> list[str]:
        from rich.cells import cell_len, chop_cells

        def is_wide(text: str) -> bool:
            return cell_len(text.rstrip()) > width

        lines = [""]
        words = _WORD.findall(self._name)
        for part in (part for word in words for part in (_PART.findall(word) if is_wide(word) else [word])):
            if lines[-1] and is_wide(lines[-1] + part):
                lines.append("")
            first, *others = chop_cells(part, width) if is_wide(part) else [part]
            lines[-1] += first
            lines += others
        return [line.rstrip() for line in lines]
