"""64-bit little-endian ELF: header, section table, segment table.

Layout: System V ABI, https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, with extended numbering (more
than 65279 sections: the true counts stand in section 0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sm121.device.window import Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from sm121.device.window import Buffer

MAGIC = b"\x7fELF"
EM_CUDA = 190
SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_REL, SHT_DYNSYM = 2, 3, 4, 6, 7, 8, 9, 11
PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
PF_WRITE = 2
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3

MAX_SECTIONS = 1 << 18
"""More sections than any compiler makes; above it the table is taken for damage, so that memory stays bounded."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_MACHINES = {62: "x86_64", 183: "aarch64", EM_CUDA: "cuda", 3: "i386", 40: "arm", 21: "ppc64", 243: "riscv64"}
_EXTENDED = 0xFFFF


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; `offset` counts from the start of the ELF file, sizes are bytes."""

    index: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; `offset` counts from the start of the ELF file, sizes are bytes."""

    type: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class ElfFile:
    """What the header and the two tables say. `damage` names each claim that the bytes do not bear out."""

    window: Window = field(repr=False)
    machine_number: int
    type: int
    os_abi: int
    abi_version: int
    version: int
    flags: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]
    damage: tuple[str, ...]

    @classmethod
    def parse(cls, buffer: Buffer | Window) -> Self:
        """Read the tables. DamagedError if this is no 64-bit little-endian ELF file at all.

        A table or section that runs past the end of the file is named in `damage`, and the rest is read.
        """
        window = buffer if isinstance(buffer, Window) else Window.over(buffer)
        if window.head(4) != MAGIC:
            raise DamagedError(
                f"not an ELF file: wanted {MAGIC!r} at {window.base:#x}, found {window.head(4)!r}."
            )
        ident, kind, machine, version, _, phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum, shstrndx = (
            window.unpack(_HEADER, 0, "ELF header")
        )
        if ident[4] != 2 or ident[5] != 1:
            raise DamagedError(
                f"unsupported ELF file: wanted 64-bit little-endian (class 2, data 1), found class {ident[4]}, data {ident[5]}."
            )
        damage: list[str] = []
        sections: tuple[Section, ...] = ()
        segments: tuple[Segment, ...] = ()
        try:
            if shoff and (shnum == 0 or shstrndx == _EXTENDED or phnum == _EXTENDED):
                first = window.unpack(_SECTION, shoff, "section header 0")
                shnum = shnum or first[5]
                shstrndx = first[6] if shstrndx == _EXTENDED else shstrndx
                phnum = first[7] if phnum == _EXTENDED else phnum
            if shoff:
                sections = _sections(window, shoff, shentsize, shnum, shstrndx, damage)
        except DamagedError as error:
            damage += error.problems
        try:
            if phoff and phnum:
                segments = _segments(window, phoff, phentsize, phnum, damage)
        except DamagedError as error:
            damage += error.problems
        return cls(
            window, machine, kind, ident[7], ident[8], version, flags, sections, segments, tuple(damage)
        )  # fmt: skip

    @property
    def machine(self) -> str:
        """`aarch64`, `x86_64`, `cuda`, or `machine 999` for one without a name here."""
        return _MACHINES.get(self.machine_number, f"machine {self.machine_number}")

    def named(self, *names: str) -> tuple[Section, ...]:
        """Sections with one of these names, in file order of the table."""
        return tuple(section for section in self.sections if section.name in names)

    def content(self, section: Section) -> Window:
        """The bytes of a section; DamagedError if it runs past the end of the file."""
        if section.type == SHT_NOBITS:
            return Window(self.window.buffer, self.window.base, 0)
        return self.window.part(section.offset, section.size, f"section {section.name}")


def _sections(
    window: Window, offset: int, entry_size: int, count: int, names_index: int, damage: list[str]
) -> tuple[Section, ...]:
    if entry_size != _SECTION.size:
        raise DamagedError(
            f"section header table at {offset:#x}: wanted entries of 64 bytes, found {entry_size}."
        )
    if count > MAX_SECTIONS:
        raise DamagedError(
            f"section header table at {offset:#x}: wanted at most {MAX_SECTIONS} sections, found {count}."
        )
    table = window.take(offset, count * entry_size, f"section header table ({count} sections)")
    rows = list(_SECTION.iter_unpack(table))
    names = b""
    if names_index >= count:
        damage.append(f"section names: wanted an index below {count}, found {names_index}.")
    elif names_index:
        try:
            names = window.take(rows[names_index][4], rows[names_index][5], "section names")
        except DamagedError as error:
            damage += error.problems
    sections = []
    for index, (name, kind, flags, address, start, size, link, info, _, entry) in enumerate(rows):
        end = names.find(b"\0", name)
        if names and end < 0:
            damage.append(f"section {index}: its name at {name:#x} lies outside the {len(names)} bytes of names.")
        text = names[name:end].decode("utf-8", "replace") if end >= 0 else ""
        if kind not in {0, SHT_NOBITS} and not window.holds(start, size):
            damage.append(
                f"section {text or index} is truncated: wanted {size} bytes at {window.base + start:#x}, "
                f"but the file ends at {window.base + window.size:#x}."
            )
        sections.append(Section(index, text, kind, flags, address, start, size, link, info, entry))
    return tuple(sections)


def _segments(window: Window, offset: int, entry_size: int, count: int, damage: list[str]) -> tuple[Segment, ...]:
    if entry_size != _SEGMENT.size:
        raise DamagedError(
            f"program header table at {offset:#x}: wanted entries of 56 bytes, found {entry_size}."
        )
    if count > MAX_SECTIONS:
        raise DamagedError(
            f"program header table at {offset:#x}: wanted at most {MAX_SECTIONS} entries, found {count}."
        )
    table = window.take(offset, count * entry_size, f"program header table ({count} segments)")
    segments = []
    for kind, flags, start, address, _, size, _, _ in _SEGMENT.iter_unpack(table):
        if kind in {PT_LOAD, PT_DYNAMIC} and not window.holds(start, size):
            damage.append(
                f"segment at {window.base + start:#x} is truncated: wanted {size} bytes, "
                f"but the file ends at {window.base + window.size:#x}."
            )
        segments.append(Segment(kind, flags, start, address, size))
    return tuple(segments)
