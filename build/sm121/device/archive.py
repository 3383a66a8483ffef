"""Static archives (`ar`): their members and where they lie.

Layout: ar(5), with GNU's long names (`//`, `/123`) and BSD's (`#1/20`). A thin archive holds no members but the names of
other files; it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device.window import Window

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"
_HEADER = 60
_LONGEST_NAME = 4096
_MOST_MEMBERS = 1 << 18  # a static library of LLVM's size has some thousands
_INDEXES = {"/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED"}


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file in an archive: its name and its bytes."""

    name: str
    window: Window


def members(archive: Window) -> Iterator[ArchiveMember]:
    """The members in order, without indexes and tables of names. DamagedError where the chain breaks."""
    if archive.head(len(MAGIC)) == THIN_MAGIC:
        raise DamagedError(
            "a thin archive holds only the names of its members.", do="inspect the object files themselves."
        )
    if archive.head(len(MAGIC)) != MAGIC:
        raise DamagedError(f"not an archive: wanted {MAGIC!r}, found {archive.head(8)!r}.")
    offset = len(MAGIC)
    long_names = b""
    for _ in range(_MOST_MEMBERS):
        if offset >= archive.size:
            return
        header = archive.take(offset, _HEADER, "archive member header")
        at = archive.base + offset
        digits = header[48:58].strip()
        if header[58:] != b"`\n" or not digits.isdigit():
            raise DamagedError(f"archive member at {at:#x} is damaged: its header reads {header!r}.")
        size = int(digits)
        content = archive.part(offset + _HEADER, size, "archive member")
        name = header[:16].rstrip().decode("utf-8", "replace")
        offset += _HEADER + size + size % 2
        if name == "//":
            long_names = content.take(0, size, "archive names")
        elif name not in _INDEXES:
            member = _member(name, content, long_names)
            if member.name not in _INDEXES:
                yield member
    raise DamagedError(f"archive: wanted at most {_MOST_MEMBERS} members, found more.")


def _member(name: str, content: Window, long_names: bytes) -> ArchiveMember:
    if name.startswith("#1/") and name[3:].isdecimal():
        length = int(name[3:])
        text = (
            content.take(0, length, "archive member name")[:_LONGEST_NAME]
            .rstrip(b"\0")
            .decode("utf-8", "replace")
        )
        return ArchiveMember(text, content.part(length, content.size - length, "archive member"))
    if name.startswith("/") and name[1:].isdecimal():
        start = int(name[1:])
        text = long_names[start : start + _LONGEST_NAME].split(b"\n", 1)[0].decode("utf-8", "replace")
        return ArchiveMember(text.rstrip("/"), content)
    return ArchiveMember(name.rstrip("/"), content)
