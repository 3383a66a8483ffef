"""Device files to read: fixtures, and small ones made byte by byte, with any number in them wrong on request."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parent / "fixtures"
BINARY = (".so", ".o", ".a", ".cubin", ".fatbin")


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def fixtures() -> list[str]:
    return sorted(path.name for path in FIXTURES.iterdir() if path.suffix in BINARY)


def entry(
    payload: bytes, *, kind: int = 2, sm: int = 120, flags: int = 0x11, compressed: int = 0, size: int = 0,
    header: int = 64, padded: int | None = None, mark: int = 0x0101, version: tuple[int, int] = (1, 8),
) -> bytes:  # fmt: skip
    """An entry of a fatbin; its payload is padded to 8 bytes."""
    body = payload + bytes(-len(payload) % 8)
    fields = (
        kind, mark, header, len(body) if padded is None else padded, compressed, 0, version[1], version[0], sm, 0, 0,
        flags, 0, size,
    )  # fmt: skip
    return struct.pack("<HHIQIIHHIIIQQQ", *fields).ljust(header, b"\0") + body


def container(
    *entries: bytes, magic: int = 0xBA55ED50, version: int = 1, header: int = 16, more: int = 0
) -> bytes:
    """A fatbin of these entries, which claims `more` bytes than it has."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", magic, version, header, len(body) + more) + body


def wrappers(*pointers: int, magic: int = 0x466243B1) -> bytes:
    return b"".join(struct.pack("<IIQQ", magic, 1, pointer, 0) for pointer in pointers)


@dataclass(frozen=True, slots=True)
class Part:
    """A section to be, with the address that it would be loaded at (0: nowhere)."""

    name: str
    data: bytes
    type: int = 1
    flags: int = 0
    link: int = 0
    info: int = 0
    address: int = 0
    size: int | None = None


def elf(
    parts: Sequence[Part], *, machine: int = 183, kind: int = 3, os_abi: int = 0, abi: int = 0, e_flags: int = 0,
    extended: bool = False, headers: bool = True, segments: Sequence[tuple[int, int, int, int, int]] = (),
) -> bytes:  # fmt: skip
    """An ELF file of these sections. `segments` are (type, flags, offset, address, size).

    With `extended` the counts stand in section 0; without `headers` there is no section table.
    """
    names = b"\0" + b"".join(part.name.encode() + b"\0" for part in parts) + b".shstrtab\0"
    body = bytearray(64 + 56 * len(segments))
    rows = []
    name_at = 1
    for part in (*parts, Part(".shstrtab", names, 3)):
        body += bytes(-len(body) % 8)
        size = len(part.data) if part.size is None else part.size
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ",
                name_at,
                part.type,
                part.flags,
                part.address,
                len(body),
                size,
                part.link,
                part.info,
                8,
                0,
            )
        )
        name_at += len(part.name) + 1
        body += part.data
    body += bytes(-len(body) % 8)
    count, names_index = len(rows) + 1, len(rows)
    table = len(body)
    first = (0, 0, 0, 0, 0, count if extended else 0, names_index if extended else 0, 0, 0, 0)
    body += struct.pack("<IIQQQQIIQQ", *first) + b"".join(rows)
    ident = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi]) + bytes(7)
    for index, (segment, flags, offset, address, size) in enumerate(segments):
        struct.pack_into(
            "<IIQQQQQQ", body, 64 + 56 * index, segment, flags, offset, address, address, size, size, 8
        )
    struct.pack_into(
        "<16sHHIQQQIHHHHHH", body, 0, ident, kind, machine, 1, 0, 64 if segments else 0, table if headers else 0, e_flags,
        64, 56, len(segments), 64, 0 if extended or not headers else count,
        (0xFFFF if extended else names_index) if headers else 0,
    )  # fmt: skip
    return bytes(body)


def section(data: bytes, name: str) -> tuple[int, int, int]:
    """Place of a section's header, of its content, and its size: found without the package's own reader."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    count, names_index = struct.unpack_from("<HH", data, 0x3C)
    (names_at,) = struct.unpack_from("<Q", data, table + 64 * names_index + 24)
    for index in range(count):
        at = table + 64 * index
        (name_at,) = struct.unpack_from("<I", data, at)
        start = names_at + name_at
        if data[start : data.index(b"\0", start)] == name.encode():
            offset, size = struct.unpack_from("<QQ", data, at + 24)
            return at, offset, size
    raise LookupError(name)


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]
