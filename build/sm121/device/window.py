"""Reading numbers and bytes from a part of a buffer, never past its end.

Every offset that comes from a file is a claim. A window checks it, so that the format readers need no slices of
their own, and says where in the file the claim failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any, Self

from sm121.errors import DamagedError

if TYPE_CHECKING:
    import struct

Buffer = bytes | bytearray | mmap | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """`size` bytes of `buffer` from `base` on. Offsets are counted from `base`; messages count from the buffer's start."""

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
        return 0 <= offset and 0 <= size and offset + size <= self.size

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

    def _check(self, offset: int, size: int, what: str) -> None:
        if not self.holds(offset, size):
            raise DamagedError(
                f"{what} at {self.base + offset:#x}: wanted {size} bytes, "
                f"found {max(0, min(size, self.size - offset)) if offset >= 0 else 0} before the end at {self.base + self.size:#x}."
            )
