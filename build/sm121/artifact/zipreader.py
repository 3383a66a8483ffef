"""Reads zip files that nobody vouches for.

The standard library reads the central directory. The members are inflated here: straight from the mapped file in
large pieces, never beyond the size they declare, their checksum verified at the end. zlib-ng does it in half of
zlib's time, and inflating is most of the work of reading a wheel.
"""

from __future__ import annotations

import io
import mmap
import stat
import struct
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Self

from zlib_ng import zlib_ng

from sm121.artifact.member import CHUNK, LIMITS, MOST_PROBLEMS, Mapped, RawReader, buffered, give_back, printable
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sm121.artifact.member import Limits

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_PIECE = 1 << 18
_AT_ONCE = 1 << 18
"""Bytes of an entry that is inflated when it is opened: a wheel has thousands, and a stream for each costs more."""
_DESCRIPTOR = 24
"""Bytes that may follow a member's data: its checksum and sizes, written by tools that stream."""
_ENCRYPTED = 0x1
_UTF8 = 0x800
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError, RuntimeError,
    NotImplementedError, IndexError, KeyError,
)  # fmt: skip
"""What the standard library raises on damaged input."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One row of the central directory, checked against the header in front of its data.

    Sizes and offsets in bytes; `start` is where the data begins. `damage` says why the data cannot be read.
    """

    path: str
    size: int
    stored: int
    method: int
    crc: int
    header: int
    start: int
    mode: int
    damage: str = ""

    @property
    def end(self) -> int:
        return self.start + self.stored

    @property
    def symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def folder(self) -> bool:
        return self.path.endswith("/")


class ZipArchive:
    """An opened zip file. Raises ArtifactError if it has no readable central directory."""

    def __init__(self, path: Path, limits: Limits = LIMITS) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._library = zipfile.ZipFile(path)
        except (ValueError, *_FAULTS) as error:
            raise ArtifactError(
                f"{path.name} is not a readable zip file: {error}.",
                do="fetch it again and compare its sha256; a broken download ends like this.",
            ) from error
        rows = self._library.infolist()
        if len(rows) > limits.entries:
            raise ArtifactError(f"{path.name} lists {len(rows)} entries; at most {limits.entries} are read.")
        self.entries = tuple(self._entry(row) for row in rows)
        self.problems = list(islice(_problems(self.entries, limits), MOST_PROBLEMS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._library.close()
        try:
            self._file.close()
        except BufferError:  # a member's buffer is still in use
            return

    def _entry(self, row: zipfile.ZipInfo) -> ZipEntry:
        start, damage = self._data(row)
        return ZipEntry(
            path=row.orig_filename, size=row.file_size, stored=row.compress_size, method=row.compress_type,
            crc=row.CRC, header=row.header_offset, start=start, mode=row.external_attr >> 16, damage=damage,
        )  # fmt: skip

    def _data(self, row: zipfile.ZipInfo) -> tuple[int, str]:
        """Where the data of a row begins, and why it cannot be read."""
        offset, end = row.header_offset, self._library.start_dir
        if not 0 <= offset <= end - _LOCAL.size:
            return 0, "its header lies outside the file"
        magic, _, flags, method, *_, name_size, extra_size = _LOCAL.unpack_from(self._file, offset)
        if magic != b"PK\x03\x04":
            return 0, "no header stands where the directory says"
        named = offset + _LOCAL.size
        start = named + name_size + extra_size
        name = self._file[named : named + name_size].decode("utf-8" if flags & _UTF8 else "cp437", "replace")
        plain, packed = row.file_size, row.compress_size
        faults = {
            "its data runs past the end of the archive": start + packed > end,
            f"the header in front of the data calls it {printable(name)}": name != row.orig_filename,
            "directory and header name different compressions": method != row.compress_type,
            "it is encrypted": bool((flags | row.flag_bits) & _ENCRYPTED),
            f"it is stored plainly, yet {packed} bytes stand for {plain}": method == _STORED and packed != plain,
            f"compression method {method} is none that wheels use": method not in {_STORED, _DEFLATED},
        }
        return start, next((fault for fault, holds in faults.items() if holds), "")

    def open(self, entry: ZipEntry) -> BinaryIO:
        """Stream an entry's data; damage is found at the latest when its end is reached."""
        if entry.damage:
            raise ArtifactError(f"{printable(entry.path)} in {self.path.name} cannot be read: {entry.damage}.")
        inflater = _Inflater(self._file, entry, self.path.name)
        if max(entry.size, entry.stored) <= _AT_ONCE:
            return io.BytesIO(b"".join(iter(lambda: inflater.take(_AT_ONCE), b"")))
        return buffered(inflater, entry.size)

    def mapped(self, entry: ZipEntry) -> Mapped | None:
        """The data in the mapped archive, if it is stored plainly; its checksum is verified here."""
        if entry.damage or entry.method != _STORED:
            return None
        with memoryview(self._file) as whole, whole[entry.start : entry.end] as view:
            if zlib_ng.crc32(view) != entry.crc:
                raise _damaged(entry, self.path.name, "its checksum is wrong")
        return Mapped(self._file, entry.start, entry.size)


@dataclass(frozen=True, slots=True)
class ZipContent:
    """The bytes of one entry."""

    archive: ZipArchive
    entry: ZipEntry

    def open(self) -> BinaryIO:
        return self.archive.open(self.entry)

    def mapped(self) -> Mapped | None:
        return self.archive.mapped(self.entry)


class _Inflater(RawReader):
    """Inflates one entry, at most to its declared size."""

    def __init__(self, file: mmap.mmap, entry: ZipEntry, archive: str) -> None:
        self._file = file
        self._entry = entry
        self._archive = archive
        self._position = self._released = entry.start
        self._done = 0
        self._crc = 0
        self._stored = entry.method == _STORED
        self._decoder = zlib_ng.decompressobj(-zlib_ng.MAX_WBITS)
        self._tail = b""

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        piece = self.take(min(len(target), CHUNK)) if len(target) else b""
        target[: len(piece)] = piece
        return len(piece)

    def take(self, most: int) -> bytes:
        """The next bytes, at most `most` and at least one; none at an end that was found to be right."""
        piece = self._next(most)
        if piece:
            self._done += len(piece)
            self._crc = zlib_ng.crc32(piece, self._crc)
            if self._done > self._entry.size:
                raise _damaged(
                    self._entry, self._archive, f"it is longer than the {self._entry.size} bytes declared"
                )
        else:
            self._check()
        return piece

    def _next(self, most: int) -> bytes:
        if self._stored:
            piece = self._file[self._position : min(self._position + most, self._entry.end)]
            self._advance(len(piece))
            return piece
        # One byte more than declared is asked for, so that a longer member shows itself.
        most = min(most, self._entry.size - self._done + 1)
        try:
            while not self._decoder.eof:
                tail = self._tail or self._file[self._position : min(self._position + _PIECE, self._entry.end)]
                if not self._tail:
                    self._advance(len(tail))
                piece = self._decoder.decompress(tail, most)
                self._tail = self._decoder.unconsumed_tail
                if piece:
                    return piece
                if not tail:
                    break
        except zlib_ng.error as error:  # type: ignore[misc]  # the stub calls it an instance
            raise _damaged(self._entry, self._archive, str(error)) from error
        return b""

    def _advance(self, count: int) -> None:
        self._position += count
        self._released = give_back(self._file, self._released, self._position)

    def _check(self) -> None:
        if self._done != self._entry.size or not (self._stored or self._decoder.eof):
            raise _damaged(self._entry, self._archive, f"it ends after {self._done} of {self._entry.size} bytes")
        if self._crc != self._entry.crc:
            raise _damaged(self._entry, self._archive, "its checksum is wrong")


def unsafe(path: str) -> str:
    """Why a path must not be unpacked, "" if it may be."""
    if not path or path == "/":
        return "has no name"
    if path.startswith(("/", "\\")) or path[1:2] == ":":
        return "is absolute"
    if ".." in path.replace("\\", "/").split("/"):
        return "leaves the folder it is unpacked into"
    if "\\" in path:
        return "has a backslash in its name"
    if "\0" in path or not path.isprintable():
        return "has control characters in its name"
    return ""


def _problems(entries: tuple[ZipEntry, ...], limits: Limits) -> Iterator[Finding]:
    counts = Counter(entry.path for entry in entries)
    for path, count in counts.items():
        if count > 1:
            yield _fail("archive.duplicate", path, f"stands {count} times in the archive", "once")
        if reason := unsafe(path):
            yield _fail("archive.path", path, reason, "a relative path inside the folder")
    for entry in entries:
        if entry.damage:
            yield _fail("archive.damage", entry.path, entry.damage)
        if entry.symlink:
            yield _fail("archive.link", entry.path, "is a symbolic link", "regular files only")
        if entry.size > limits.member:
            yield _fail("archive.size", entry.path, f"claims {entry.size} bytes", f"at most {limits.member}")
    total = sum(entry.size for entry in entries)
    if total > limits.total:
        yield _fail("archive.size", "the archive", f"claims {total} bytes unpacked", f"at most {limits.total}")
    yield from _places(entries)


def _places(entries: tuple[ZipEntry, ...]) -> Iterator[Finding]:
    """Members must lie one behind the other: neither share bytes nor leave room for what nobody lists."""
    end, before, hidden = 0, "", 0
    for entry in sorted((entry for entry in entries if entry.start), key=lambda entry: entry.header):
        if entry.header < end:
            got = f"shares bytes of the archive with {printable(before)}"
            yield _fail("archive.overlap", entry.path, got, "data of its own (this is how zip bombs are made)")
        gap = entry.header - end
        hidden += gap if gap > (_DESCRIPTOR if before else 0) else 0
        if entry.end > end:
            end, before = entry.end, entry.path
    if hidden:
        got = f"has {hidden} bytes in front of or between its members that its directory does not list"
        yield Finding("archive.gap", "the archive", Verdict.WARN, got, "members one behind the other")


def _fail(check: str, path: str, got: str, wanted: str = "") -> Finding:
    return Finding(check, printable(path), Verdict.FAIL, got, wanted)


def _damaged(entry: ZipEntry, archive: str, reason: str) -> ArtifactError:
    return ArtifactError(
        f"{printable(entry.path)} in {archive} is damaged: {reason}.",
        do="fetch the file again; compare its sha256.",
    )
