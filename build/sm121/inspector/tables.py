"""Differences and matrices for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sm121.inspector.words import shown
from sm121.progress import plural, size
from sm121.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from sm121.inspector.differences import Difference, KernelChange, Matrix, Row

_BYTES = frozenset({"size", "library size", "PTX to compile", "bytes"})


def diff_text(difference: Difference, console: Console, verbosity: int = 0) -> None:
    """Print what changed; verbosity 1 adds every kernel."""
    console.print(Text(f"- {shown(difference.before)}\n+ {shown(difference.after)}", style="bold"))
    if difference.equal:
        console.print("Nothing differs.")
        return
    table = _table("what", "of", "before", "after")
    for change in difference.changes:
        before, after = (_value(change.what, text) for text in (change.before, change.after))
        table.add_row(escape(change.what), escape(shown(change.subject)), before, after)
    console.print()
    console.print(table)
    if difference.counts:
        console.print(f"\n{plural(len(difference.kernels), 'kernel')} differ:")
        for kind, count in difference.counts.items():
            console.print(f"  {count:>6}  {kind}", highlight=False)
    kernels = difference.kernels if verbosity else ()
    for kernel in kernels:
        console.print(Text(_kernel(kernel)), soft_wrap=True)
    if difference.kernels and not verbosity:
        console.print(Text("-v names them.", style="dim"))


def matrix_text(table: Matrix, console: Console, verbosity: int = 0) -> None:
    """Print the table; libraries and families that are equal everywhere are left out unless verbosity asks."""
    shown_rows = _table("", *table.columns)
    for row in table.general:
        shown_rows.add_row(Text(row.heading, style="bold"), *(_value(row.heading, cell) for cell in row.cells))
    for title, rows in (("library", table.libraries), ("kernel family", table.families)):
        shown_rows.add_row("")
        shown_rows.add_row(Text(title, style="bold"))
        for row in rows if verbosity else _different(rows, len(table.columns)):
            shown_rows.add_row(escape(shown(row.heading)), *(escape(cell) or "·" for cell in row.cells))
    print_table(shown_rows, console)


def _different(rows: Iterable[Row], columns: int) -> list[Row]:
    return [row for row in rows if columns < 2 or len(set(row.cells)) > 1]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(escape(heading), overflow="fold")
    return table


def _value(what: str, text: str) -> str:
    if what in _BYTES and text.isdecimal():
        return size(int(text))
    return escape(shown(text, 300)) or "·"


def _kernel(change: KernelChange) -> str:
    sizes = f"{change.size_before} -> {change.size_after} B"
    return f"{change.before or 'not there'} -> {change.after or 'not there'}  {sizes}  {shown(change.name, 2000)}"
