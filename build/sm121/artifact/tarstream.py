"""Reads the headers of a tar stream that nobody vouches for, in one forward pass.

The standard library's reader takes a header of any declared size into memory and follows offsets backwards; here
every header is bounded and the position only grows. Formats: ustar, GNU (long names, base-256 numbers), pax
(https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
_LONGEST_HEADER = 1 << 20
_LONGEST_PATH = 4096
_MOST_HEADERS = 16
"""Extended headers in front of one entry; writers use two at most."""
_LARGEST = 1 << 60


class TarKind(StrEnum):
    """What an entry is."""

    FILE = "file"
    LINK = "hard link"
    SYMLINK = "symbolic link"
    FOLDER = "folder"
    OTHER = "device or pipe"


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One entry as the archive writes it.

    `offset` and `size` give the content in the uncompressed stream, in bytes. `link` is the target of a link.
    `fault` says why the content of a file cannot be read as it lies there.
    """

    path: str
    kind: TarKind
    size: int
    offset: int
    link: str = ""
    mode: int = 0
    fault: str = ""


class Forward(Protocol):
    """A stream that only goes forward."""

    @property
    def position(self) -> int: ...

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer only at the end."""

    def skip_to(self, position: int) -> bool:
        """Go on to `position`; False if the stream ends before."""


_KINDS = {
    b"\0": TarKind.FILE, b"0": TarKind.FILE, b"7": TarKind.FILE, b"S": TarKind.FILE,
    b"1": TarKind.LINK, b"2": TarKind.SYMLINK, b"5": TarKind.FOLDER, b"D": TarKind.FOLDER,
    b"3": TarKind.OTHER, b"4": TarKind.OTHER, b"6": TarKind.OTHER,
}  # fmt: skip


def tar_entries(source: Forward) -> Iterator[TarEntry]:
    """Give the entries in their order; raises ArtifactError where the archive is damaged.

    While an entry is handed out, `source` may be read up to the end of its content.
    """
    common: dict[str, bytes] = {}
    while (header := _header(source)) is not None:
        extra: dict[str, bytes] = {}
        for _ in range(_MOST_HEADERS):
            kind = header[156:157]
            if kind not in {b"x", b"g", b"L", b"K"}:
                break
            data = _extended(source, _number(header[124:136]))
            if kind == b"g":
                common.update(_pax(data))
            elif kind == b"x":
                extra.update(_pax(data))
            else:
                extra["path" if kind == b"L" else "linkpath"] = data.partition(b"\0")[0]
            following = _header(source)
            if following is None:
                raise ArtifactError("the archive ends behind an extended header")
            header = following
        else:
            raise ArtifactError(f"more than {_MOST_HEADERS} extended headers stand in a row")
        entry = _entry(source, header, {**common, **extra})
        yield entry
        if not source.skip_to(entry.offset + -(-entry.size // BLOCK) * BLOCK):
            raise ArtifactError(f"the archive ends within {entry.path!r}")


def _header(source: Forward) -> bytes | None:
    """The next header, None at the end of the archive."""
    block = source.read(BLOCK)
    if not block or not any(block):
        return None
    if len(block) < BLOCK:
        raise ArtifactError(f"the archive ends within the header at {source.position - len(block)}")
    if not _sums(block):
        raise ArtifactError(f"the header at {source.position - BLOCK} is damaged (its checksum is wrong)")
    return block


def _sums(header: bytes) -> bool:
    """Whether the checksum is right: the sum of all bytes with its own field as blanks."""
    rest = header[:148] + b" " * 8 + header[156:]
    stated, unsigned = _number(header[148:156]), sum(rest)
    # Old writers summed signed bytes.
    return stated == unsigned or stated == unsigned - 256 * sum(byte > 127 for byte in rest)


def _entry(source: Forward, header: bytes, extra: dict[str, bytes]) -> TarEntry:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    name = extra.get("GNU.sparse.name", extra.get("path", name))
    link = extra.get("linkpath", header[157:257].partition(b"\0")[0])
    flag = header[156:157]
    kind = _KINDS.get(flag, TarKind.FILE)
    if kind is TarKind.FILE and flag == b"\0" and name.endswith(b"/"):
        kind = TarKind.FOLDER
    size = _decimal(extra["size"]) if "size" in extra else _number(header[124:136])
    fault = ""
    if flag == b"S":
        _skip_sparse_map(source, header)
        fault = "it is stored sparsely"
    elif any(key.startswith("GNU.sparse.") for key in extra):
        fault = "it is stored sparsely"
    if kind in {TarKind.LINK, TarKind.SYMLINK, TarKind.OTHER} and "size" not in extra:
        # These have no content; some writers give the size of what they point to.
        size = 0
    if len(name) > _LONGEST_PATH or len(link) > _LONGEST_PATH:
        raise ArtifactError(
            f"a path of {max(len(name), len(link))} bytes stands in the archive; 4096 is the most"
        )
    return TarEntry(_text(name), kind, size, source.position, _text(link), _mode(header), fault)


def _extended(source: Forward, size: int) -> bytes:
    if size > _LONGEST_HEADER:
        raise ArtifactError(
            f"an extended header of {size} bytes stands in the archive; {_LONGEST_HEADER} is the most"
        )
    start = source.position
    data = source.read(size)
    if len(data) < size or not source.skip_to(start + -(-size // BLOCK) * BLOCK):
        raise ArtifactError("the archive ends within an extended header")
    return data


def _pax(data: bytes) -> dict[str, bytes]:
    """Records `LENGTH KEY=VALUE\\n`; the length counts the whole record."""
    records, at = {}, 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + 20)
        length = _decimal(data[at:blank]) if blank > at else 0
        record = data[blank + 1 : at + length]
        key, sign, value = record.partition(b"=")
        if blank < 0 or not sign or not value.endswith(b"\n"):
            raise ArtifactError("an extended header is damaged")
        records[key.decode("utf-8", "backslashreplace")] = value[:-1]
        at += length
    return records


def _skip_sparse_map(source: Forward, header: bytes) -> None:
    """Old GNU sparse files: the map goes on in blocks behind the header while a flag says so."""
    more = header[482]
    while more:
        block = source.read(BLOCK)
        if len(block) < BLOCK:
            raise ArtifactError("the archive ends within a map of a sparse file")
        more = block[504]


def _number(field: bytes) -> int:
    """An octal number, or a big-endian one where the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value > _LARGEST:
            raise ArtifactError("a header has a number out of range")
        return value
    digits = field.partition(b"\0")[0].strip()
    if digits and (digits.strip(b"01234567") or len(digits) > 12):
        raise ArtifactError("a header has a number that is not octal")
    return int(digits, 8) if digits else 0


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise ArtifactError("an extended header has a length or size that is no number")
    return int(text)


def _mode(header: bytes) -> int:
    try:
        return _number(header[100:108]) & 0o7777
    except ArtifactError:
        return 0


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
