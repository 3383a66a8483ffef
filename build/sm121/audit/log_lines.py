"""The lines of a log that may be anything: a device, a pipe that never ends, a file without line ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = 1 << 16
"""Bytes of a line that are handed on; those behind them are passed over."""
_LONGEST = 8 << 20
"""Bytes of a line: one that is longer has no end."""
_MOST = 256 << 20
"""Bytes of a log: a server writes less in weeks, and reading this much takes half a minute."""
_MOST_LINES = 2_000_000
"""What so many bytes are in lines of a server; shorter ones take as long each."""


@dataclass
class LogLines:
    """Goes over the lines of `stream` as they come. Afterwards `cut` says why not all was read, "" if all was."""

    stream: BinaryIO
    cut: str = ""

    def __iter__(self) -> Iterator[str]:
        count = total = 0
        while head := self._piece(count):
            count += 1
            yield head.decode("utf-8", "replace")
            length, piece = len(head), head
            while not piece.endswith(b"\n") and length <= _LONGEST:
                piece = self._piece(count)
                if not piece:
                    return
                length += len(piece)
            total += length
            if length > _LONGEST:
                self.cut = f"its line {count} is longer than {_LONGEST >> 20} MiB, reading stopped there"
                return
            if count >= _MOST_LINES:
                self.cut = f"it has more than the {_MOST_LINES:,} lines that are read"
                return
            if total > _MOST:
                self.cut = (
                    f"it is larger than the {_MOST >> 20} MiB that are read, reading stopped at line {count}"
                )
                return

    def _piece(self, count: int) -> bytes:
        try:
            return self.stream.readline(_HEAD)
        except OSError as error:
            self.cut = f"it cannot be read on behind line {count}: {error.strerror or error}"
            return b""

    @property
    def finding(self) -> Finding | None:
        """What was not read, None if all was."""
        if not self.cut:
            return None
        return Finding("bootlog.cut", "the log", Verdict.UNKNOWN, self.cut, "a text that ends", CUT_ADVICE)


CUT_ADVICE = (
    "Give a text file with the part from the server's start on: docker logs NAME 2>&1 | head -n 100000 > FILE"
)
