"""Small pieces of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.artifact import printable
from sm121.progress import duration

if TYPE_CHECKING:
    from collections.abc import Sequence


def span(least: float, most: float) -> str:
    """`25 min 04 s to 29 min 51 s`; what nobody waits for is `less than 1 s`."""
    if most < 1:
        return "less than 1 s"
    shown_least, shown_most = duration(least), duration(most)
    return shown_most if shown_least == shown_most else f"{shown_least} to {shown_most}"


def joined(items: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f"{', '.join(items[:-1])} {last} {items[-1]}" if len(items) > 1 else "".join(items)


def shown(text: str, width: int = 200) -> str:
    """Text of unknown origin, printable and no longer than `width`."""
    text = printable(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def listed(items: Sequence[str], most: int = 5) -> str:
    """The first items, and how many more there are."""
    rest = len(items) - most
    return ", ".join(shown(item) for item in items[:most]) + (f" and {rest} more" if rest > 0 else "")
