"""A zip writer whose bytes depend on its input alone.

`zipfile` cannot copy a member as it is, and what it writes around the members follows the Python that runs it.
Here every field is fixed by the caller, and sizes stand in front of the data, so one forward pass suffices.
Layout: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (sections 4.3 and 4.5).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable

STORED = 0
DEFLATED = 8

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ELSEWHERE = 0xFFFFFFFF
"""Stands in a field of 32 bits for: the value is in the zip64 record."""
_LARGE = 0xFFFFFFFF
"""Values from here on do not fit a field of 32 bits."""
_MANY = 0xFFFF
_UTF8 = 0x800
_UNIX = 3 << 8
_PLAIN_VERSION = 20
_ZIP64_VERSION = 45
_FIRST_TIME = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp())
_LAST_TIME = int(datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC).timestamp())


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: sizes in bytes, `stored` as it lies in the archive, `mode` with the file type."""

    name: str
    crc: int
    size: int
    stored: int
    method: int
    mode: int


def dos_time(epoch: int) -> tuple[int, int]:
    """The zip date and time of `epoch` (seconds, UTC), moved into 1980-2107, in steps of two seconds."""
    moment = datetime.fromtimestamp(min(max(epoch, _FIRST_TIME), _LAST_TIME), UTC)
    date = (moment.year - 1980) << 9 | moment.month << 5 | moment.day
    return date, moment.hour << 11 | moment.minute << 5 | moment.second // 2


class ArchiveWriter:
    """Writes members one after the other; `finish` writes the directory and returns size and digest."""

    def __init__(self, file: IO[bytes], epoch: int) -> None:
        self._file = file
        self._date, self._time = dos_time(epoch)
        self._digest = hashlib.sha256()
        self._size = 0
        self._directory: list[bytes] = []

    def add(self, entry: Entry, data: Iterable[bytes]) -> None:
        """Write one member. `data` yields exactly `entry.stored` bytes, compressed as `entry.method` says."""
        offset = self._size
        name = entry.name.encode()
        flags = 0 if entry.name.isascii() else _UTF8
        large = entry.size >= _LARGE or entry.stored >= _LARGE
        version = _ZIP64_VERSION if large else _PLAIN_VERSION
        sizes = (_ELSEWHERE, _ELSEWHERE) if large else (entry.stored, entry.size)
        extra = struct.pack("<2H2Q", 1, 16, entry.size, entry.stored) if large else b""
        self._write(
            _LOCAL.pack(
                b"PK\3\4",
                version,
                flags,
                entry.method,
                self._time,
                self._date,
                entry.crc,
                *sizes,
                len(name),
                len(extra),
            )
        )
        self._write(name + extra)
        start = self._size
        for chunk in data:
            self._write(chunk)
        if self._size - start != entry.stored:
            raise ValueError(f"{entry.name}: {entry.stored} bytes were announced, {self._size - start} came")
        self._directory.append(self._central(entry, name, flags, offset))

    def _central(self, entry: Entry, name: bytes, flags: int, offset: int) -> bytes:
        wide = [value for value in (entry.size, entry.stored, offset) if value >= _LARGE]
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        version = _ZIP64_VERSION if wide else _PLAIN_VERSION
        stored, size, place = (_narrow(value) for value in (entry.stored, entry.size, offset))
        header = _CENTRAL.pack(
            b"PK\1\2", _UNIX | version, version, flags, entry.method, self._time, self._date, entry.crc,
            stored, size, len(name), len(extra), 0, 0, 0, entry.mode << 16, place,
        )  # fmt: skip
        return header + name + extra

    def finish(self) -> tuple[int, Sha256]:
        """Write the directory; return the archive's size in bytes and its digest."""
        offset = self._size
        for record in self._directory:
            self._write(record)
        length = self._size - offset
        count = len(self._directory)
        if offset >= _LARGE or length >= _LARGE or count >= _MANY:
            end = self._size
            self._write(
                _END64.pack(
                    b"PK\6\6", _END64.size - 12, _UNIX | _ZIP64_VERSION, _ZIP64_VERSION, 0, 0,
                    count, count, length, offset,
                )
            )  # fmt: skip
            self._write(_LOCATOR64.pack(b"PK\6\7", 0, end, 1))
        short = min(count, _MANY)
        self._write(_END.pack(b"PK\5\6", 0, 0, short, short, _narrow(length), _narrow(offset), 0))
        return self._size, Sha256(self._digest.hexdigest())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)


def _narrow(value: int) -> int:
    return value if value < _LARGE else _ELSEWHERE
