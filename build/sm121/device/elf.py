"""64-bit little-endian ELF: header, section table, segment table.

Layout: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, with extended numbering (above 65279 sections the
true counts stand in section 0).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self, overload

from sm121.device.window import Remarks, Strings, Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from sm121.device.window import Buffer

MAGIC = b"\x7fELF"
EM_CUDA = 190
ET_REL = 1
PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
PF_WRITE = 2
SHT_NULL, SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 0, 2, 4, 6, 7, 8, 11

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")

SHT_CUDA_SHARED_NOBITS = 0x7000000A
"""Shared memory of a kernel in a cubin (`.nv_debug.shared`): a size without bytes, as NCCL and NVSHMEM ship it."""
_EMPTY = frozenset({SHT_NULL, SHT_NOBITS})
_EXTENDED = 0xFFFF
_ORDERS = {1: "<", 2: ">"}
_HEADER_SIZES = {1: (40, 52), 2: (52, 64)}  # class: where the header's own size stands, and what it must be
# More than any compiler writes; bounds what a hostile table costs.
_MOST_SECTIONS, _MOST_SEGMENTS = 1 << 18, 1 << 9
_MACHINES = {
    3: "i386",
    21: "ppc64",
    22: "s390",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    EM_CUDA: "cuda",
    243: "riscv64",
}
_TYPES = {ET_REL: "relocatable", 2: "executable", 3: "shared", 4: "core"}


class Section(NamedTuple):
    """One section header. `offset` counts from the start of the ELF file; sizes are bytes.

    A tuple, because a wheel's cubins have a hundred thousand of them.
    """

    index: int  # type: ignore[assignment]
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int


class Sections(Sequence[Section]):
    """The section table. A row becomes a Section when it is asked for: of most cubins three of hundreds are."""

    def __init__(self, rows: Sequence[tuple[int, ...]], names: Strings) -> None:
        self._rows = rows
        self._names = names
        self._made: dict[int, Section] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Section: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Section, ...]: ...
    def __getitem__(self, index: int | slice) -> Section | tuple[Section, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self._rows))[index]
        made = self._made.get(number)
        if made is None:
            at, kind, flags, address, offset, size, link, info, _, _ = self._rows[number]
            name = self._names.at(at) or ""
            made = self._made[number] = Section(number, name, kind, flags, address, offset, size, link, info)
        return made

    def named(self, *names: str) -> tuple[Section, ...]:
        """The sections with one of these names, in the order of the table."""
        wanted = tuple(name.encode() + b"\0" for name in names)
        starts = self._names.data.startswith
        return tuple(self[number] for number, row in enumerate(self._rows) if starts(wanted, row[0]))

    def of_type(self, kind: int) -> tuple[Section, ...]:
        """The sections of a type (SHT_...), in the order of the table."""
        return tuple(self[number] for number, row in enumerate(self._rows) if row[1] == kind)


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header. `offset` counts from the start of the ELF file; `size` is its bytes in the file."""

    type: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class _Header:
    """The file header, with the counts of extended numbering resolved."""

    ident: bytes
    type: int
    machine: int
    version: int
    flags: int
    segments: tuple[int, int, int]
    sections: tuple[int, int, int]
    names: int


@dataclass(frozen=True, slots=True, eq=False)
class ElfFile:
    """What the header and the two tables say. `damage` names each claim that the bytes do not bear out.

    `named_sections` is False if there are no section headers, or none of them has a name: then nothing can be said
    from the absence of a section.
    """

    window: Window = field(repr=False)
    machine_number: int
    type_number: int
    os_abi: int
    abi_version: int
    version: int
    flags: int
    sections: Sections
    segments: tuple[Segment, ...]
    damage: tuple[str, ...]

    @classmethod
    def parse(cls, buffer: Buffer | Window) -> Self:
        """Read the tables. DamagedError if this is no 64-bit little-endian ELF file at all.

        A table or section that runs past the end of the file is named in `damage`, and the rest is read.
        """
        window = buffer if isinstance(buffer, Window) else Window.over(buffer)
        header, damage = _header(window)
        sections = Sections((), Strings(b""))
        segments: tuple[Segment, ...] = ()
        try:
            sections = _sections(window, header, damage)
        except DamagedError as error:
            damage.add(*error.problems)
        try:
            segments = _segments(window, header, damage)
        except DamagedError as error:
            damage.add(*error.problems)
        return cls(
            window=window, machine_number=header.machine, type_number=header.type, os_abi=header.ident[7],
            abi_version=header.ident[8], version=header.version, flags=header.flags, sections=sections,
            segments=segments, damage=damage.all(),
        )  # fmt: skip

    @property
    def machine(self) -> str:
        """`aarch64`, `x86_64`, `cuda`, or `machine 999` for one without a name here."""
        return machine_name(self.machine_number)

    @property
    def type(self) -> str:
        """`relocatable`, `executable`, `shared`."""
        return _TYPES.get(self.type_number, f"type {self.type_number}")

    @property
    def named_sections(self) -> bool:
        return any(section.name for section in self.sections)

    def named(self, *names: str) -> tuple[Section, ...]:
        """The sections with one of these names, in the order of the table."""
        return self.sections.named(*names)

    def of_type(self, kind: int) -> tuple[Section, ...]:
        """The sections of a type (SHT_...), in the order of the table."""
        return self.sections.of_type(kind)

    def content(self, section: Section) -> Window:
        """The bytes of a section; DamagedError if it runs past the end of the file."""
        if section.type == SHT_NOBITS or (section.type == SHT_CUDA_SHARED_NOBITS and self.machine == "cuda"):
            return Window(self.window.buffer, self.window.base, 0)
        return self.window.part(section.offset, section.size, f"section {section.name or section.index}")

    def linked(self, section: Section) -> Section:
        """The section that `link` names: the strings of a symbol table, the symbols of relocations."""
        if not 0 < section.link < len(self.sections):
            raise DamagedError(
                f"section {section.name or section.index}: wanted a link to one of {len(self.sections)} sections, "
                f"found {section.link}."
            )
        return self.sections[section.link]

    def strings(self, section: Section) -> Strings:
        """A section read as a string table."""
        content = self.content(section)
        return Strings(content.take(0, content.size, "strings"))

    def offset_of(self, address: int) -> int | None:
        """Where the byte loaded at `address` stands in the file, by the segments; None if it is in none."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        return None


def other_layout(window: Window) -> str:
    """The machine of a sound ELF header that is 32-bit or big-endian, "" for any other bytes.

    Hosts of that kind cannot run CUDA code of today, but their libraries do turn up in environments.
    """
    ident = window.head(16)
    if ident[:4] != MAGIC or len(ident) < 16 or ident[4] not in _HEADER_SIZES or ident[5] not in _ORDERS:
        return ""
    if (ident[4], ident[5]) == (2, 1):
        return ""
    order = _ORDERS[ident[5]]
    size_at, size = _HEADER_SIZES[ident[4]]
    if not window.holds(0, size) or window.unpack(struct.Struct(order + "H"), size_at, "ELF header")[0] != size:
        return ""
    return machine_name(window.unpack(struct.Struct(order + "H"), 18, "ELF header")[0])


def machine_name(number: int) -> str:
    return _MACHINES.get(number, f"machine {number}")


def _header(window: Window) -> tuple[_Header, Remarks]:
    if window.head(4) != MAGIC:
        raise DamagedError(f"not an ELF file: wanted {MAGIC!r} at {window.base:#x}, found {window.head(4)!r}.")
    ident, kind, machine, version, _, phoff, shoff, flags, _, phsize, phnum, shsize, shnum, names = window.unpack(
        HEADER, 0, "ELF header"
    )
    if ident[4] != 2 or ident[5] != 1:
        raise DamagedError(
            f"unsupported ELF file: wanted class 2 (64-bit) and data 1 (little-endian), "
            f"found {ident[4]} and {ident[5]}."
        )
    damage = Remarks()
    if shoff and (shnum == 0 or _EXTENDED in {names, phnum}):
        try:
            first = window.unpack(SECTION, shoff, "section header 0")
        except DamagedError as error:
            damage.add(*error.problems)
            shoff = 0
        else:
            shnum = shnum or first[5]
            names = first[6] if names == _EXTENDED else names
            phnum = first[7] if phnum == _EXTENDED else phnum
    return _Header(
        ident=ident, type=kind, machine=machine, version=version, flags=flags,
        segments=(phoff, phsize, phnum), sections=(shoff, shsize, shnum), names=names,
    ), damage  # fmt: skip


def _rows(
    window: Window, table: tuple[int, int, int], layout: struct.Struct, what: str, most: int
) -> list[tuple[int, ...]]:
    offset, size, count = table
    if not offset or not count:
        return []
    if size != layout.size:
        raise DamagedError(f"{what} table at {offset:#x}: wanted rows of {layout.size} bytes, found {size}.")
    if count > most:
        raise DamagedError(f"{what} table at {offset:#x}: wanted at most {most} rows, found {count}.")
    return list(layout.iter_unpack(window.take(offset, count * size, f"{what} table of {count} rows")))


def _sections(window: Window, header: _Header, damage: Remarks) -> Sections:
    rows = _rows(window, header.sections, SECTION, "section header", _MOST_SECTIONS)
    names = Strings(b"")
    if rows and header.names >= len(rows):
        damage.add(f"section names: wanted a section below {len(rows)}, found {header.names}.")
    elif rows and header.names:
        try:
            names = Strings(window.take(rows[header.names][4], rows[header.names][5], "section names"))
        except DamagedError as error:
            damage.add(*error.problems)
    made = Sections(rows, names)
    room, end, last_name = 2 * window.size, window.size, names.last
    for index, (at, kind, _, _, offset, size, _, _, _, _) in enumerate(rows):
        if at > last_name and header.names and kind != SHT_NULL:
            damage.add(f"section {index}: its name at {at:#x} lies outside the table of names.")
        if kind in _EMPTY or (kind == SHT_CUDA_SHARED_NOBITS and header.machine == EM_CUDA):
            continue
        if offset + size > end:
            damage.add(
                f"section {made[index].name or index} is truncated: wanted {size} bytes at {window.base + offset:#x}, "
                f"but the file ends at {window.base + window.size:#x}."
            )
        elif (room := room - size) < 0:
            raise DamagedError("the sections overlap: together they are more than twice as large as the file.")
    return made


def _segments(window: Window, header: _Header, damage: Remarks) -> tuple[Segment, ...]:
    segments = []
    rows = _rows(window, header.segments, _SEGMENT, "program header", _MOST_SEGMENTS)
    for kind, flags, offset, address, _, size, _, _ in rows:
        if kind in {PT_LOAD, PT_DYNAMIC} and not window.holds(offset, size):
            damage.add(
                f"segment is truncated: wanted {size} bytes at {window.base + offset:#x}, "
                f"but the file ends at {window.base + window.size:#x}."
            )
        segments.append(Segment(kind, flags, offset, address, size))
    return tuple(segments)
