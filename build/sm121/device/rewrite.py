"""New containers in the place of old ones: as changes to a file, and the simplest way to lay them out.

In place every container keeps its offset, so nothing else in the file changes; the room that becomes free is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.window import Window
from sm121.errors import FinishError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sm121.device.fatbin import Container
    from sm121.device.window import Buffer

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """`size` bytes at `offset` of the old file become `data`, which may be shorter or longer."""

    offset: int
    size: int
    data: bytes


def changed(buffer: Buffer, changes: Iterable[Change]) -> Iterator[bytes]:
    """The file with all changes, in pieces. Changes must not overlap (ValueError)."""
    window = Window.over(buffer)
    position = 0
    for change in sorted(changes, key=lambda each: (each.offset, each.size)):
        if change.offset < position:
            raise ValueError(f"the change at {change.offset:#x} overlaps the one before it")
        yield from _kept(window, position, change.offset)
        yield change.data
        position = change.offset + change.size
    yield from _kept(window, position, window.size)


def in_place(containers: Sequence[Container], new: Mapping[int, bytes]) -> list[Change]:
    """Put each new container (by index) where the old one begins. FinishError names all that do not fit."""
    problems = [
        f"the container at {each.offset:#x} has room for {each.size} bytes, its new content needs "
        f"{len(new[each.index])}."
        for each in containers
        if each.index in new and len(new[each.index]) > each.size
    ]
    if problems:
        raise FinishError(problems)
    return [
        Change(each.offset, each.size, new[each.index].ljust(each.size, b"\0"))
        for each in containers
        if each.index in new
    ]


def _kept(window: Window, start: int, end: int) -> Iterator[bytes]:
    for offset in range(start, end, _PIECE):
        yield window.take(offset, min(_PIECE, end - offset), "unchanged bytes")
