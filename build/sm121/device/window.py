"""Reading numbers and bytes from a part of a buffer, never past its end.

Every offset that comes from a file is a claim. A window checks it, so that the format readers need no checks of their
own, and says where in the file the claim failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any, Self

from sm121.errors import DamagedError

if TYPE_CHECKING:
    import struct
    from collections.abc import Iterable

Buffer = bytes | bytearray | mmap | memoryview

_MOST_SENTENCES = 100
_FREE_OVERLAP = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """`size` bytes of `buffer` from `base` on.

    Offsets are counted from `base`; messages count from the start of the buffer, as a hex dump of the file does.
    """

    buffer: Buffer
    base: int
    size: int

    @classmethod
    def over(cls, buffer: Buffer) -> Self:
        """The whole buffer."""
        if isinstance(buffer, memoryview):
            buffer = buffer.cast("B")
        return cls(buffer, 0, len(buffer))

    def holds(self, offset: int, size: int) -> bool:
        """Whether `size` bytes at `offset` lie inside."""
        return offset >= 0 and size >= 0 and offset + size <= self.size

    def part(self, offset: int, size: int, what: str) -> Window:
        """A smaller window, or DamagedError naming `what`."""
        self._check(offset, size, what)
        return Window(self.buffer, self.base + offset, size)

    def take(self, offset: int, size: int, what: str) -> bytes:
        """A copy of `size` bytes, or DamagedError naming `what`."""
        self._check(offset, size, what)
        start = self.base + offset
        return bytes(self.buffer[start : start + size])

    def head(self, size: int) -> bytes:
        """The first `size` bytes, fewer if there are no more."""
        return bytes(self.buffer[self.base : self.base + min(size, self.size)])

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        """Numbers at `offset`, or DamagedError naming `what`."""
        self._check(offset, layout.size, what)
        return layout.unpack_from(self.buffer, self.base + offset)

    def find(self, needle: bytes, offset: int) -> int:
        """The first place of `needle` at or after `offset`, or -1."""
        start, end = self.base + max(0, offset), self.base + self.size
        data = bytes(self.buffer[start:end]) if isinstance(self.buffer, memoryview) else self.buffer
        shift = start if isinstance(self.buffer, memoryview) else 0
        found = data.find(needle, start - shift, end - shift)
        return found + shift - self.base if found >= 0 else -1

    def _check(self, offset: int, size: int, what: str) -> None:
        if not self.holds(offset, size):
            end = self.base + self.size
            found = max(0, min(size, self.size - offset)) if offset >= 0 else 0
            raise DamagedError(
                f"{what} at {self.base + offset:#x} is truncated: wanted {size} bytes, found {found} before the end "
                f"at {end:#x}."
            )


class Strings:
    """A string table. It gives out a bounded number of bytes, however many names claim to overlap in it.

    `last` is where the last string ends: none begins after it.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.last = data.rfind(b"\0")
        self._left = min(8 * len(data), 2 * len(data) + _FREE_OVERLAP) + (1 << 16)
        # Nearly all tables are ASCII: decoded once as a whole, they need no decoding per string.
        self._text = data.decode("ascii") if data.isascii() else None

    def at(self, offset: int) -> str | None:
        """The NUL-ended string at `offset`, or None if there is none (or too many were asked for)."""
        text = self._text
        end = self.data.find(b"\0", offset) if text is None else text.find("\0", offset)
        if offset < 0 or end < 0:
            return None
        self._left -= end - offset
        if self._left < 0:
            return None
        return self.data[offset:end].decode("utf-8", "replace") if text is None else text[offset:end]


class Remarks:
    """Sentences about a file, at most a hundred of them, and how many more there were: a hostile file earns millions."""

    def __init__(self, sentences: Iterable[str] = ()) -> None:
        self._sentences: list[str] = []
        self._more = 0
        self.add(*sentences)

    def add(self, *sentences: str) -> None:
        room = _MOST_SENTENCES - len(self._sentences)
        self._sentences += sentences[:room]
        self._more += len(sentences[room:])

    def all(self) -> tuple[str, ...]:
        return (*self._sentences, *([f"and {self._more} more of the same kind."] if self._more else []))
