"""Fatbins: containers of device images, as nvcc's fatbinary and nvFatbin write them.

Container header, 16 bytes: u32 magic, u16 version, u16 header size, u64 size of what follows. Then entries without a
terminator: a header of 64 bytes or more and a payload. Little endian throughout. The layout is not published; it
was measured on CUDA 12.8 to 13.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sm121.errors import DamagedError
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from sm121.device.window import Window
    from sm121.target import Kind

MAGIC = 0xBA55ED50
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
FLAG_LZ4, FLAG_ZSTD, FLAG_ARCH, FLAG_FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
Compression = Literal["", "lz4", "zstd"]

HEADER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_OPTIONS = struct.Struct("<II")
_KINDS: dict[int, Kind] = {1: "ptx", 2: "cubin", 8: "lto"}
_ALIGNMENT = 8
_ZEROS = bytes(4096)


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """One cubin, PTX or LTO-IR in a fatbin, or a bare cubin.

    `offset` (of the payload) and `header_offset` (of the entry header; the payload's for a bare cubin) count bytes
    from the start of the buffer that was read. `stored` is the payload's size in the file without padding, `size`
    the size after decompression. `version` is the PTX ISA of PTX, the cubin ABI of a cubin. `container` is the
    container's `index`, `index` the place in it. `suffix_known` is False only for a bare cubin that does not say
    whether it is generic or for the family.
    """

    kind: Kind
    arch: ArchSpec
    section: str
    container: int
    index: int
    offset: int
    header_offset: int
    stored: int
    size: int
    compression: Compression
    version: tuple[int, int]
    flags: int
    options: str = ""
    name: str = ""
    suffix_known: bool = True

    @property
    def target(self) -> str:
        """`sm_120f`, `compute_80`, `lto_120`."""
        prefix = {"cubin": "sm", "ptx": "compute", "lto": "lto"}[self.kind]
        return f"{prefix}_{self.arch.number}{self.arch.suffix}"


@dataclass(frozen=True, slots=True)
class UnknownEntry:
    """An entry of a kind that this reader does not know; `header_offset` counts from the buffer's start."""

    kind_number: int
    sm: int
    header_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Container:
    """One fatbin: what nvcc made of one translation unit, or nvlink of a device link.

    `size` includes the container's header; `index` is unique in the file; `member` is the object in an archive.
    """

    section: str
    index: int
    offset: int
    size: int
    images: tuple[DeviceImage, ...]
    unknown: tuple[UnknownEntry, ...] = ()
    member: str = ""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """All device code of a file.

    `format` is what the file is; `machine` that of its host code (`cuda` for a cubin, "" for a bare fatbin).
    `sections` names the device sections found. `damage` has one sentence per claim that the bytes do not bear out: a
    file with damage is never "host only". `notices` are things found that are right but not understood.
    """

    format: Literal["elf", "cubin", "fatbin", "archive"]
    machine: str
    containers: tuple[Container, ...]
    damage: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[DeviceImage, ...]:
        """The images of all containers, in file order."""
        return tuple(image for container in self.containers for image in container.images)

    @property
    def has_device_code(self) -> bool:
        """Whether any image was found, also of unknown kind."""
        return any(container.images or container.unknown for container in self.containers)

    @property
    def host_only(self) -> bool:
        """Proven to hold no device code: nothing found, and nothing damaged that could have held some."""
        return not self.containers and not self.sections and not self.damage


def walk(window: Window, *, section: str, first: int, member: str = "") -> tuple[list[Container], list[str]]:
    """All containers of a section (or of a bare fatbin), numbered from `first`, and the damage met.

    After damage the rest of the section is left alone: to search on for a magic number would hide what was lost.
    """
    containers: list[Container] = []
    damage: list[str] = []
    offset = 0
    while (offset := _next_nonzero(window, offset)) < window.size:
        try:
            container = read_container(
                window, offset, section=section, index=first + len(containers), member=member
            )
        except DamagedError as error:
            where = f"{section or 'fatbin'}" + (f" of {member}" if member else "")
            damage += [f"{where}: {problem}" for problem in error.problems]
            break
        containers.append(container)
        offset += container.size
    return containers, damage


def read_container(window: Window, offset: int, *, section: str, index: int, member: str = "") -> Container:
    """The container at `offset` of the window, or DamagedError if its sizes contradict each other."""
    at = window.base + offset
    magic, version, header_size, size = window.unpack(HEADER, offset, "container header")
    if magic != MAGIC:
        raise DamagedError(f"container at {at:#x} is damaged: wanted magic {MAGIC:#010x}, found {magic:#010x}.")
    if version != 1 or header_size < HEADER.size:
        raise DamagedError(
            f"container at {at:#x} is damaged: wanted version 1 and a header of 16 bytes, "
            f"found version {version} and {header_size} bytes."
        )
    content = window.part(offset, header_size + size, f"container of {header_size + size} bytes")
    images: list[DeviceImage] = []
    unknown: list[UnknownEntry] = []
    position = header_size
    while position < content.size:
        entry, position = read_entry(
            content, position, section=section, container=index, index=len(images) + len(unknown)
        )
        if isinstance(entry, UnknownEntry):
            unknown.append(entry)
        else:
            images.append(entry)
    return Container(section, index, at, content.size, tuple(images), tuple(unknown), member)


def read_entry(
    window: Window, offset: int, *, section: str, container: int, index: int
) -> tuple[DeviceImage | UnknownEntry, int]:
    """The entry at `offset` of its container's window, and the offset of the next."""
    at = window.base + offset
    (
        kind, _, header_size, padded, compressed, options_at, minor, major, sm, name_at, name_size, flags, _, size,
    ) = window.unpack(ENTRY, offset, "entry header")  # fmt: skip
    if header_size < ENTRY.size:
        raise DamagedError(
            f"entry at {at:#x} is damaged: wanted a header of 64 bytes or more, found {header_size}."
        )
    header = window.part(offset, header_size, "entry header")
    payload = window.part(offset + header_size, padded, "payload of an entry")
    end = offset + header_size + padded
    if kind not in _KINDS:
        return UnknownEntry(kind, sm, at, header_size + padded), end
    if not 10 <= sm <= 999:
        raise DamagedError(f"entry at {at:#x} is damaged: wanted an sm number such as 120, found {sm}.")
    compression: Compression = "zstd" if flags & FLAG_ZSTD else "lz4" if flags & FLAG_LZ4 else ""
    stored = compressed if compression else padded
    if stored > padded:
        raise DamagedError(
            f"entry at {at:#x} is damaged: wanted at most {padded} bytes of payload, found {stored}."
        )
    suffix = "a" if flags & FLAG_ARCH else "f" if flags & FLAG_FAMILY else ""
    return DeviceImage(
        kind=_KINDS[kind], arch=ArchSpec(sm // 10, sm % 10, suffix), section=section, container=container, index=index,
        offset=payload.base, header_offset=at, stored=stored, size=size if compression else padded,
        compression=compression, version=(major, minor), flags=flags, options=_options(header, options_at),
        name=_text(header, name_at, name_size),
    ), end  # fmt: skip


def _options(header: Window, offset: int) -> str:
    if not offset or not header.holds(offset, _OPTIONS.size):
        return ""
    start, _ = header.unpack(_OPTIONS, offset, "options")
    return _text(header, start, header.size - start)


def _text(header: Window, offset: int, size: int) -> str:
    if not offset or not header.holds(offset, size):
        return ""
    return header.take(offset, size, "text").split(b"\0", 1)[0].decode("utf-8", "replace")


def _next_nonzero(window: Window, offset: int) -> int:
    """The next 8-byte boundary at or after `offset` whose word is not zero. Linkers pad with zeros."""
    offset += -offset % _ALIGNMENT
    while offset < window.size:
        block = window.take(offset, min(len(_ZEROS), window.size - offset), "padding")
        stripped = block.lstrip(b"\0")
        if stripped:
            return offset + (len(block) - len(stripped)) // _ALIGNMENT * _ALIGNMENT
        offset += len(block)
    return window.size
