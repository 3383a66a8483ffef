"""Fatbin wrappers: the 24 bytes through which host code registers a container.

`{u32 magic 0x466243B1, u32 version, u64 pointer to the container, u64 pointer}`, in section `.nvFatBinSegment`, one per
container. They tell how many containers there must be, and where, independently of the containers themselves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.elf import ET_REL, PF_WRITE, PT_DYNAMIC, PT_LOAD, RELA, SHT_RELA, SYMBOL, ElfFile
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device.elf import Section
    from sm121.device.window import Window

SECTION = ".nvFatBinSegment"
MAGIC = 0x466243B1
LAYOUT = struct.Struct("<IIQQ")

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_POINTER_AT = 8
_DYNAMIC = struct.Struct("<QQ")
_DT_RELA, _DT_RELASZ = 7, 8
_ABSOLUTE = {
    62: frozenset({1, 8}),
    183: frozenset({257, 1027}),
}  # R_X86_64_64, _RELATIVE; R_AARCH64_ABS64, _RELATIVE
_MOST = 1 << 17


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper at `offset` of the ELF file; `container` is the offset it points to, None if that cannot be told."""

    offset: int
    container: int | None


def wrappers(elf: ElfFile) -> tuple[tuple[Wrapper, ...], list[str]]:
    """The wrappers of section `.nvFatBinSegment`, and what is wrong with them."""
    found: list[Wrapper] = []
    damage: list[str] = []
    for section in elf.named(SECTION):
        try:
            content = elf.content(section)
        except DamagedError as error:
            damage += error.problems
            continue
        if content.size % LAYOUT.size or content.size > _MOST * LAYOUT.size:
            damage.append(f"{SECTION}: wanted a multiple of {LAYOUT.size} bytes, found {content.size}.")
            continue
        try:
            pointers = _relocated(elf, section)
        except DamagedError as error:
            damage += error.problems
            pointers = {}
        for offset in range(0, content.size, LAYOUT.size):
            magic, _, pointer, _ = content.unpack(LAYOUT, offset, "fatbin wrapper")
            if magic != MAGIC:
                damage.append(
                    f"{SECTION}: wrapper at {content.base + offset:#x} is damaged: wanted magic {MAGIC:#010x}, "
                    f"found {magic:#010x}."
                )
            target = pointers.get(offset)
            if target is None and pointer and elf.type_number != ET_REL:
                target = elf.offset_of(pointer)
            found.append(Wrapper(section.offset + offset, target))
    return tuple(found), damage


def unnamed_wrappers(elf: ElfFile) -> tuple[Wrapper, ...]:
    """Wrappers in the writable segments of a linked file, found by their magic number.

    For files whose section headers are gone or renamed: the driver does not need them either.
    """
    found = []
    pointers: dict[int, int] | None = None
    for segment in elf.segments:
        if segment.type != PT_LOAD or not segment.flags & PF_WRITE:
            continue
        size = max(0, min(segment.size, elf.window.size - segment.offset))
        content = elf.window.part(segment.offset, size, "segment") if size else None
        for offset in _occurrences(content) if content else ():
            if pointers is None:
                pointers = _dynamic_relocations(elf)
            address = segment.address + offset + _POINTER_AT
            _, _, pointer, _ = content.unpack(LAYOUT, offset, "fatbin wrapper") if content else (0, 0, 0, 0)
            found.append(Wrapper(segment.offset + offset, elf.offset_of(pointers.get(address) or pointer)))
            if len(found) > _MOST:
                return tuple(found)
    return tuple(found)


def _occurrences(content: Window) -> Iterator[int]:
    offset = content.find(_MAGIC_BYTES, 0)
    while offset >= 0 and content.holds(offset, LAYOUT.size):
        if offset % _POINTER_AT == 0:
            yield offset
        offset = content.find(_MAGIC_BYTES, offset + len(_MAGIC_BYTES))


def _relocated(elf: ElfFile, section: Section) -> dict[int, int]:
    """Offset in the wrapper section of each relocated pointer -> offset in the file that it will hold."""
    if elf.type_number == ET_REL:
        return _object_relocations(elf, section)
    inside = range(section.address, section.address + section.size)
    targets = {}
    for address, target in _dynamic_relocations(elf).items():
        if address in inside and (offset := elf.offset_of(target)) is not None:
            targets[address - section.address - _POINTER_AT] = offset
    return targets


def _object_relocations(elf: ElfFile, section: Section) -> dict[int, int]:
    targets = {}
    for relocations in elf.of_type(SHT_RELA):
        if relocations.info != section.index:
            continue
        symbols = elf.content(elf.linked(relocations))
        for offset, info, addend in _rela(elf.content(relocations)):
            _, _, _, where, value, _ = symbols.unpack(SYMBOL, (info >> 32) * SYMBOL.size, "symbol")
            if where < len(elf.sections) and info & 0xFFFFFFFF in _ABSOLUTE.get(elf.machine_number, ()):
                targets[offset - _POINTER_AT] = elf.sections[where].offset + value + addend
    return targets


def _dynamic_relocations(elf: ElfFile) -> dict[int, int]:
    """Address -> address it will hold, relative to where the file is loaded; found without section headers."""
    for segment in elf.segments:
        if segment.type == PT_DYNAMIC:
            content = elf.window.part(segment.offset, segment.size // 16 * 16, "dynamic segment")
            tags = dict(_DYNAMIC.iter_unpack(content.take(0, content.size, "dynamic segment")))
            start = elf.offset_of(tags.get(_DT_RELA, 0))
            if start is not None and (size := tags.get(_DT_RELASZ, 0)):
                kinds = _ABSOLUTE.get(elf.machine_number, frozenset())
                table = elf.window.part(start, size, "dynamic relocations")
                return {address: addend for address, info, addend in _rela(table) if info in kinds}
    return {}


def _rela(table: Window) -> Iterator[tuple[int, int, int]]:
    rows = table.take(0, table.size // RELA.size * RELA.size, "relocations")
    yield from RELA.iter_unpack(rows)
