"""Tables whose names do not fit beside the rest."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sm121.tables import fits, print_table


def table() -> Table:
    made = Table(box=None, pad_edge=False, show_edge=False)
    made.add_column("library", overflow="fold")
    made.add_column("size", justify="right", no_wrap=True)
    made.add_column("images", overflow="fold")
    made.add_row(Text("a_long_name_of_a_library.so"), "1.5 MB", "sm_120f 74, sm_121 6, sm_90a 53")
    made.add_row(Text("a_long_name_of_a_library.so"), "20.5 MB", "")
    made.add_row(Text("and 3 more"))
    return made


def printed(width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True)
    print_table(table(), console)
    assert console.width == width
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_that_fits_is_a_table() -> None:
    assert printed(80)[0] == "library                         size  images"
    assert fits(table(), Console(width=45))
    assert not fits(table(), Console(width=44))


def test_the_rest_stands_below_a_name_that_is_said_once() -> None:
    assert printed(40) == [
        "library", "     size  images",
        "a_long_name_of_a_library.so", "   1.5 MB  sm_120f 74, sm_121 6, sm_90a", "           53", "  20.5 MB",
        "and 3 more",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [20, 24])
def test_without_room_for_columns_each_cell_has_its_heading(width: int) -> None:
    lines = printed(width)
    assert lines[0] == "a_long_name_of_a_library.so"
    assert (
        " ".join(line.strip() for line in lines[1:-2]) == "size: 1.5 MB; images: sm_120f 74, sm_121 6, sm_90a 53"
    )
    assert lines[-2:] == ["  size: 20.5 MB", "and 3 more"]
