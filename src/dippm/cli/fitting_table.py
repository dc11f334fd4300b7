"""A table that becomes blocks of lines where the terminal is too narrow for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.style import Style
    from rich.table import Column

__all__ = ["FittingTable"]

_NARROWEST_TEXT = 9
_INDENT = 2


class FittingTable(Table):
    """A table where every figure has the room that it needs, else a block of ``title: value`` lines for each row.

    Rich itself makes columns narrower until the table fits, and cuts what is in them. Here text on the left may be
    folded, down to nine characters or the column's ``min_width``; what is on the right is broken behind spaces alone.

    The first column says what a row is about; where it is empty that is what the row above is about.

    Args:
        title: What stands above the columns.
        gap: Spaces between two columns.
        show_header: Whether the columns' titles are shown above them.
    """

    def __init__(self, title: str | Text | None = None, *, gap: int = 2, show_header: bool = True) -> None:
        super().__init__(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, gap - 2),
            show_header=show_header,
        )

    def add_row(
        self, *cells: RenderableType | None, style: str | Style | None = None, end_section: bool = False
    ) -> None:
        """Add what stands in each column."""
        super().add_row(*(_Cell("" if cell is None else cell) for cell in cells), style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A cell knows how wide it is once it has been drawn.
        drawn = [each for each in super().__rich_console__(console, options) if isinstance(each, Segment)]
        is_wide = any(Segment.get_line_length(line) > options.max_width for line in Segment.split_lines(drawn))
        if not is_wide and not any(self._is_squeezed(column, console, options) for column in self.columns):
            yield from drawn
            return
        if self.title:
            yield Text.assemble((str(self.title), "bold"))
        yield from self._blocks()
        yield ""

    def _is_squeezed(self, column: Column, console: Console, options: ConsoleOptions) -> bool:
        cells = _cells(column)
        shown = (column.header, *cells) if self.show_header else cells
        measured = [Measurement.get(console, options, each) for each in shown]
        if column.no_wrap:
            needed = max(each.maximum for each in measured)
        else:
            needed = max(each.minimum for each in measured)
            if column.justify == "left":
                needed = max(min(needed, _NARROWEST_TEXT), column.min_width or 0)
        return any(cell.width < needed for cell in cells)

    def _blocks(self) -> Iterator[RenderableType]:
        above: RenderableType = ""
        for row in zip(*(_cells(column) for column in self.columns), strict=True):
            name, *others = (cell.content for cell in row)
            above = name if str(name) else above
            yield self._line(self.columns[0], above)
            for column, content in zip(self.columns[1:], others, strict=True):
                if str(content):
                    yield Padding(self._line(column, content), (0, 0, 0, _INDENT), expand=False)

    def _line(self, column: Column, content: RenderableType) -> Table:
        line = Table.grid(padding=(0, 1, 0, 0))
        title = str(column.header).replace("\n", " ") if self.show_header else ""
        if title:
            line.add_column()
        line.add_column(overflow="fold", style=column.style)
        shown = Text("  ").join(content.split("\n")) if isinstance(content, Text) else content
        line.add_row(*([f"{title}:", shown] if title else [shown]))
        return line


class _Cell:
    """What stands in a row's column, which keeps how wide it was drawn."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content
        self.width = 0

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.content)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.width = options.max_width
        yield self.content


def _cells(column: Column) -> Sequence[_Cell]:
    return [cell for cell in column.cells if isinstance(cell, _Cell)]
