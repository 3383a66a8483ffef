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
    from collections.abc import Collection, Iterator

    from sm121.device.elf import Section
    from sm121.device.window import Remarks, Window

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
_MOST = 1 << 15


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper at `offset` of the ELF file; `container` is the offset it points to, None if that cannot be told."""

    offset: int
    container: int | None


def wrappers(elf: ElfFile, damage: Remarks) -> tuple[Wrapper, ...]:
    """The wrappers of section `.nvFatBinSegment`. What is wrong with them is added to `damage`."""
    found: list[Wrapper] = []
    sections = elf.named(SECTION)
    if len(sections) > 1:
        damage.add(f"wanted one section {SECTION}, found {len(sections)}.")
    for section in sections[:1]:
        try:
            content = elf.content(section)
            pointers = _pointers(elf, section)
        except DamagedError as error:
            damage.add(*error.problems)
            continue
        if content.size % LAYOUT.size or content.size > _MOST * LAYOUT.size:
            damage.add(f"{SECTION}: wanted a multiple of {LAYOUT.size} bytes, found {content.size}.")
            continue
        for offset in range(0, content.size, LAYOUT.size):
            magic, _, pointer, _ = content.unpack(LAYOUT, offset, "fatbin wrapper")
            if magic != MAGIC:
                damage.add(
                    f"{SECTION}: wrapper at {content.base + offset:#x} is damaged: wanted magic {MAGIC:#010x}, "
                    f"found {magic:#010x}."
                )
            target = pointers.get(offset + _POINTER_AT)
            if target is None and pointer and elf.type_number != ET_REL:
                target = elf.offset_of(pointer)
            found.append(Wrapper(section.offset + offset, target))
    return tuple(found)


def unnamed_wrappers(elf: ElfFile) -> tuple[Wrapper, ...]:
    """Wrappers in the writable segments of a linked file, found by their magic number.

    For files whose section headers are gone or renamed: the CUDA runtime does not need them either.
    """
    hits: dict[int, tuple[int, int]] = {}
    for segment in elf.segments:
        if (
            segment.type == PT_LOAD
            and segment.flags & PF_WRITE
            and elf.window.holds(segment.offset, segment.size)
        ):
            content = elf.window.part(segment.offset, segment.size, "segment")
            for offset in _occurrences(content):
                _, _, pointer, _ = content.unpack(LAYOUT, offset, "fatbin wrapper")
                hits[segment.address + offset + _POINTER_AT] = (segment.offset + offset, pointer)
                if len(hits) > _MOST:
                    raise DamagedError(f"wanted at most {_MOST} fatbin wrappers, found more.")
    pointers = _loaded_pointers(elf, hits.keys()) if hits else {}
    return tuple(
        Wrapper(offset, elf.offset_of(pointers.get(address) or pointer))
        for address, (offset, pointer) in hits.items()
    )


def _occurrences(content: Window) -> Iterator[int]:
    offset = content.find(_MAGIC_BYTES, 0)
    while offset >= 0 and content.holds(offset, LAYOUT.size):
        if offset % _POINTER_AT == 0:
            yield offset
        offset = content.find(_MAGIC_BYTES, offset + len(_MAGIC_BYTES))


def _pointers(elf: ElfFile, section: Section) -> dict[int, int]:
    """Place of each relocated pointer in the wrapper section -> offset in the file that it will hold."""
    if elf.type_number == ET_REL:
        return _object_pointers(elf, section)
    inside = range(section.address, section.address + section.size)
    targets = {address: elf.offset_of(target) for address, target in _loaded_pointers(elf, inside).items()}
    return {address - section.address: offset for address, offset in targets.items() if offset is not None}


def _object_pointers(elf: ElfFile, section: Section) -> dict[int, int]:
    targets = {}
    kinds = _ABSOLUTE.get(elf.machine_number, frozenset())
    for relocations in elf.of_type(SHT_RELA):
        if relocations.info != section.index:
            continue
        symbols = elf.content(elf.linked(relocations))
        for offset, info, addend in _rela(elf.content(relocations)):
            if info & 0xFFFFFFFF not in kinds or offset >= section.size:
                continue
            _, _, _, where, value, _ = symbols.unpack(SYMBOL, (info >> 32) * SYMBOL.size, "symbol")
            if where < len(elf.sections):
                targets[offset] = elf.sections[where].offset + value + addend
    return targets


def _loaded_pointers(elf: ElfFile, wanted: Collection[int]) -> dict[int, int]:
    """Those of the wanted addresses that the loader fills -> the address they will hold, found without sections."""
    for segment in elf.segments:
        if segment.type == PT_DYNAMIC:
            content = elf.window.part(
                segment.offset, segment.size // _DYNAMIC.size * _DYNAMIC.size, "dynamic segment"
            )
            tags = dict(_DYNAMIC.iter_unpack(content.head(1 << 16)))
            start = elf.offset_of(tags.get(_DT_RELA, 0))
            if start is not None and (size := tags.get(_DT_RELASZ, 0)):
                kinds = _ABSOLUTE.get(elf.machine_number, frozenset())
                table = elf.window.part(start, size, "dynamic relocations")
                return {
                    address: addend
                    for address, info, addend in _rela(table)
                    if info in kinds and address in wanted
                }
    return {}


def _rela(table: Window) -> Iterator[tuple[int, int, int]]:
    rows = table.take(0, table.size // RELA.size * RELA.size, "relocations")
    yield from RELA.iter_unpack(rows)
