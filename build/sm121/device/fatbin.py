"""Fatbins: containers of device images, as nvcc's fatbinary and nvFatbin write them.

A container begins with 16 bytes: u32 magic, u16 version, u16 header size, u64 size of what follows. Entries follow, each
a header of 64 bytes or more and a payload, until the size is used up. All numbers are little-endian. The layout is not
published; it was measured on files of CUDA 12.8 to 13.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sm121.device.window import Remarks
from sm121.errors import DamagedError
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from sm121.device.window import Window
    from sm121.target import Kind

MAGIC = 0xBA55ED50
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
FLAG_LZ4, FLAG_ZSTD, FLAG_ARCH, FLAG_FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
Compression = Literal["", "lz4", "zstd"]
Format = Literal["elf", "archive", "fatbin", "cubin"]

HEADER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
ALIGNMENT = 8
KEPT_PAYLOAD = 1 << 13
"""Payloads up to this size (bytes) are kept when a file is read forward: device-link stubs are as small."""
_OPTIONS = struct.Struct("<II")
_KINDS: dict[int, Kind] = {1: "ptx", 2: "cubin", 8: "lto"}
_PREFIX: dict[Kind, str] = {"ptx": "compute", "cubin": "sm", "lto": "lto"}
_ZEROS = 4096
_MOST_ENTRIES = 1 << 16  # eight times what cuBLASLt holds; bounds what a hostile section costs


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """One cubin, PTX or LTO-IR in a container, or a bare cubin.

    `offset` (of the payload) and `header_offset` (of the entry's header) count bytes from the start of the buffer
    that was read. `stored` is the payload's size there without padding, `size` its size when decompressed.
    `version` is the ISA of PTX, the code version of a cubin, e.g. (9, 0) and (1, 8). `container` is the container's
    `index`, `index` the place in it. `suffix_known` is False only for a bare cubin that leaves open whether it is
    for one chip or its family.
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
        return f"{_PREFIX[self.kind]}_{self.arch.number}{self.arch.suffix}"


@dataclass(frozen=True, slots=True)
class UnknownEntry:
    """An entry that this reader does not know how to read, and `why`.

    `header_offset` counts from the start of the buffer; `size` is header and payload.
    """

    why: str
    sm: int
    index: int
    header_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Container:
    """One fatbin: what nvcc made of one translation unit, or nvlink of a device link.

    `offset` counts from the start of the buffer; `size` includes the container's header; `index` is unique in the
    file; `member` is the object's name in an archive.
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

    `machine` is that of the host code: `aarch64`; `cuda` for a bare cubin, "" for a bare fatbin. `damage` has one
    sentence per claim that the bytes do not bear out, `notices` one per thing found that is not understood: with
    either, what was found may not be all.
    """

    format: Format
    machine: str
    containers: tuple[Container, ...]
    damage: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[DeviceImage, ...]:
        """The images of all containers, in file order."""
        return tuple(image for container in self.containers for image in container.images)

    @property
    def has_device_code(self) -> bool:
        """Whether any entry was found, also one of unknown kind."""
        return any(container.images or container.unknown for container in self.containers)

    @property
    def host_only(self) -> bool:
        """Proven to hold no device code: none found, and nothing damaged or unknown that could be some."""
        return not self.has_device_code and not self.damage and not self.notices


class Walk:
    """Collects the containers of one file, numbered through, with the damage and the notices met on the way."""

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.damage = Remarks()
        self.notices = Remarks()
        self._entries = 0

    def region(self, window: Window, *, section: str, member: str = "") -> None:
        """Read all containers of a section, or of a bare fatbin.

        After damage the rest of the region is left alone and named: to look for the next magic number would show a
        plausible list and hide what was lost.
        """
        offset = 0
        while (offset := _next_word(window, offset)) < window.size:
            container = self.container(window, offset, section=section, member=member)
            if container is None:
                end = window.base + window.size
                self.damage.add(f"{_place(section, member)}{window.size - offset} bytes up to {end:#x} not read.")
                return
            offset += container.size

    def container(self, window: Window, offset: int, *, section: str, member: str = "") -> Container | None:
        """Read the container at `offset` of the window, or note the damage and return None."""
        try:
            container = read_container(window, offset, section=section, index=len(self.containers), member=member)
            self._count(container)
        except DamagedError as error:
            self.damage.add(*(_place(section, member) + problem for problem in error.problems))
            return None
        self.containers.append(container)
        return container

    def add(self, container: Container) -> None:
        """Take over a container that was read elsewhere."""
        self._count(container)
        self.containers.append(container)

    def result(self, kind: Format, machine: str) -> DeviceCode:
        """Everything collected."""
        for container in self.containers:
            place = _place(container.section, container.member)
            self.notices.add(
                *(
                    f"{place}entry at {entry.header_offset:#x} is not understood: {entry.why}."
                    for entry in container.unknown
                )
            )
        return DeviceCode(kind, machine, tuple(self.containers), self.damage.all(), self.notices.all())

    def _count(self, container: Container) -> None:
        self._entries += 1 + len(container.images) + len(container.unknown)
        if self._entries > _MOST_ENTRIES:
            raise DamagedError(
                f"container at {container.offset:#x}: wanted at most {_MOST_ENTRIES} entries in a file, found more."
            )


def read_container(window: Window, offset: int, *, section: str, index: int, member: str = "") -> Container:
    """The container at `offset` of the window, or DamagedError if its sizes contradict each other."""
    header_size, size = container_sizes(window, offset)
    content = window.part(offset, header_size + size, "container")
    images: list[DeviceImage] = []
    unknown: list[UnknownEntry] = []
    position = header_size
    while position < content.size:
        place = len(images) + len(unknown)
        if place > _MOST_ENTRIES:
            raise DamagedError(
                f"container at {content.base:#x}: wanted at most {_MOST_ENTRIES} entries, found more."
            )
        entry, position = read_entry(content, position, section=section, container=index, index=place)
        if isinstance(entry, UnknownEntry):
            unknown.append(entry)
        else:
            images.append(entry)
    return Container(section, index, content.base, content.size, tuple(images), tuple(unknown), member)


def container_sizes(window: Window, offset: int) -> tuple[int, int]:
    """The size of the container's header at `offset` and of what follows it, in bytes."""
    at = window.base + offset
    magic, version, header_size, size = window.unpack(HEADER, offset, "container header")
    if magic != MAGIC:
        raise DamagedError(f"container at {at:#x} is damaged: wanted magic {MAGIC:#010x}, found {magic:#010x}.")
    if version != 1 or header_size != HEADER.size:
        raise DamagedError(
            f"container at {at:#x} is damaged: wanted version 1 and a header of {HEADER.size} bytes, "
            f"found version {version} and {header_size} bytes."
        )
    return header_size, size


def read_entry(
    window: Window, offset: int, *, section: str, container: int, index: int
) -> tuple[DeviceImage | UnknownEntry, int]:
    """The entry at `offset` of its container's window, and the offset of the next."""
    at = window.base + offset
    header_size, padded = entry_sizes(window, offset)
    header = window.part(offset, header_size, "entry header")
    end = offset + header_size + padded
    window.part(offset + header_size, padded, "entry payload")
    return entry_from(header, at + header_size, padded, section=section, container=container, index=index), end


def entry_sizes(window: Window, offset: int) -> tuple[int, int]:
    """The size of the entry's header at `offset` and of its payload with padding, in bytes."""
    at = window.base + offset
    _, mark, header_size, padded, *_ = window.unpack(ENTRY, offset, "entry header")
    if mark != 0x0101 or header_size < ENTRY.size or header_size % ALIGNMENT:
        raise DamagedError(
            f"entry at {at:#x} is damaged: wanted the mark 0x0101 and a header of at least {ENTRY.size} bytes, "
            f"found {mark:#06x} and {header_size} bytes."
        )
    return header_size, padded


def entry_from(
    header: Window, payload_at: int, padded: int, *, section: str, container: int, index: int
) -> DeviceImage | UnknownEntry:
    """What an entry's header says of its payload of `padded` bytes at `payload_at`."""
    kind, _, _, _, compressed, options, minor, major, sm, name, length, flags, _, size = header.unpack(
        ENTRY, 0, "entry header"
    )
    if kind not in _KINDS:
        why = f"wanted kind 1 (PTX), 2 (cubin) or 8 (LTO-IR), found {kind:#x}"
        return UnknownEntry(why, sm, index, header.base, header.size + padded)
    if not 10 <= sm <= 999:
        raise DamagedError(f"entry at {header.base:#x} is damaged: wanted an sm number such as 120, found {sm}.")
    compression: Compression = ""
    if compressed:
        compression = "zstd" if flags & FLAG_ZSTD else "lz4" if flags & FLAG_LZ4 else ""
        if not compression:
            why = f"wanted flag {FLAG_ZSTD:#x} (zstd) or {FLAG_LZ4:#x} (LZ4) for a compressed payload, found {flags:#x}"
            return UnknownEntry(why, sm, index, header.base, header.size + padded)
    if compressed > padded:
        raise DamagedError(
            f"entry at {header.base:#x} is damaged: wanted at most {padded} bytes of payload, found {compressed}."
        )
    suffix = "a" if flags & FLAG_ARCH else "f" if flags & FLAG_FAMILY else ""
    return DeviceImage(
        kind=_KINDS[kind], arch=ArchSpec(sm // 10, sm % 10, suffix), section=section, container=container,
        index=index, offset=payload_at, header_offset=header.base, stored=compressed if compression else padded,
        size=size if compression else padded, compression=compression, version=(major, minor), flags=flags,
        options=_options(header, options), name=_text(header, name, length),
    )  # fmt: skip


def _place(section: str, member: str) -> str:
    where = f"{member}({section})" if member and section else member or section
    return f"{where}: " if where else ""


def _options(header: Window, offset: int) -> str:
    if not offset or not header.holds(offset, _OPTIONS.size):
        return ""
    start, _ = header.unpack(_OPTIONS, offset, "options")
    return _text(header, start, header.size - start)


def _text(header: Window, offset: int, size: int) -> str:
    if not offset or not header.holds(offset, size):
        return ""
    return header.take(offset, size, "text").split(b"\0", 1)[0].decode("utf-8", "replace")


def _next_word(window: Window, offset: int) -> int:
    """The next 8-byte word at or after `offset` that is not zero: linkers and finishing pad with zeros."""
    offset += -offset % ALIGNMENT
    while offset < window.size:
        block = window.take(offset, min(_ZEROS, window.size - offset), "padding")
        rest = block.lstrip(b"\0")
        if rest:
            return offset + (len(block) - len(rest)) // ALIGNMENT * ALIGNMENT
        offset += len(block)
    return window.size
