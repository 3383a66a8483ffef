"""Tables on terminals of any width: where a name or a word would be broken, the name gets a line of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Column

_INDENT = 2
_GAP = 2
_LEAST_LAST = 16
"""Columns that the last cell of a row needs below its name; it may fold there."""


def print_table(table: Table, console: Console) -> None:
    """Print a table whose first column holds names.

    On a terminal that is too narrow for whole names beside whole words, the rest of a row stands below its name: in
    columns as long as they fit, else one after the other with their headings. A name that is that of the row before is
    not said again then.
    """
    if fits(table, console):
        console.print(table)
        return
    names, others = table.columns[0], table.columns[1:]
    widths = [max(map(_length, (column.header, *column.cells))) for column in others]
    aligned = (
        _INDENT + sum(widths[:-1]) + _GAP * (len(others) - 1) + min(widths[-1], _LEAST_LAST) <= console.width
    )
    if table.title:
        console.print(Text.assemble((_text(table.title).plain, "italic")))
    if aligned:
        if _length(names.header):
            console.print(Text(_text(names.header).plain, style=table.header_style))
        console.print(_row(others, widths, [column.header for column in others], str(table.header_style)))
    before = ""
    for name, *cells in zip(names.cells, *(column.cells for column in others), strict=True):
        text = _text(name)
        if text.plain and text.plain != before:
            console.print(text, soft_wrap=True)
        before = text.plain
        if any(_length(cell) for cell in cells):
            console.print(_row(others, widths, cells) if aligned else _listed(others, cells))


def fits(table: Table, console: Console) -> bool:
    """Whether at the console's width every word of a table stays whole, and every name on one line."""
    first, *others = table.columns
    gaps = (table.padding[1] + table.padding[3]) * len(others)
    edges = table.padding[1] + table.padding[3] if table.pad_edge else 0
    borders = len(table.columns) + 1 if table.box else 0
    names = max(map(_length, (first.header, *first.cells)))
    return names + sum(map(_least, others)) + gaps + edges + borders <= console.width


def _least(column: Column) -> int:
    """The width that a column needs for whole words, or whole cells if its cells must not fold."""
    texts = [_text(cell).plain for cell in (column.header, *column.cells)]
    if column.no_wrap:
        return max(map(len, texts))
    return max((len(word) for text in texts for word in text.split()), default=0)


def _row(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[RenderableType], style: str = ""
) -> Padding:
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for column, width in zip(columns[:-1], widths, strict=False):
        grid.add_column(justify=column.justify, width=width, no_wrap=True)
    last = columns[-1]
    grid.add_column(justify=last.justify, overflow="fold", width=widths[-1] if last.no_wrap else None)
    grid.add_row(*cells, style=style)
    return Padding(grid, (0, 0, 0, _INDENT))


def _listed(columns: Sequence[Column], cells: Sequence[RenderableType]) -> Padding:
    """The cells that are not empty, with their headings."""
    parts = [
        Text.assemble(f"{heading}: " if (heading := _text(column.header).plain) else "", _text(cell))
        for column, cell in zip(columns, cells, strict=True)
        if _length(cell)
    ]
    return Padding(Text("; ").join(parts), (0, 0, 0, _INDENT))


def _length(cell: RenderableType) -> int:
    return max((len(line) for line in _text(cell).plain.split("\n")), default=0)


def _text(cell: RenderableType) -> Text:
    """A cell as the table prints it."""
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
