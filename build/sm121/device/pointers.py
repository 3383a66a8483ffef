"""What leads to the containers of a shared library, and must follow them when they move."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sm121.device.elf import RELA, SHT_DYNSYM, SHT_RELA, SHT_SYMTAB, SYMBOL
from sm121.device.rewrite import Change
from sm121.device.wrappers import LAYOUT as WRAPPER
from sm121.device.wrappers import SECTION as WRAPPERS
from sm121.errors import FinishError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sm121.device.elf import ElfFile, Section

RELATIVE = {62: 8, 183: 1027}
"""The relocation "load address plus addend" of x86_64 and of aarch64."""
SHF_ALLOC = 2
_POINTER_AT, _ADDEND_AT, _VALUE_AT = 8, 16, 8
_WORD = struct.Struct("<Q")


def follow(elf: ElfFile, section: Section, moves: Mapping[int, int]) -> list[Change]:
    """Let everything that leads to a container lead to its new place; `moves` maps old to new addresses.

    FinishError if anything leads into the section that is not understood: then nothing in it may move.
    """
    wrappers = _wrapper_section(elf)
    old = _relocated(elf, section, wrappers, moves)
    changes = [
        Change(at, _WORD.size, _WORD.pack(moves[addend]))
        for at, addend in old.values()
        if moves[addend] != addend
    ]
    content = elf.content(wrappers)
    for place, (_, addend) in old.items():
        (word,) = content.unpack(_WORD, place - wrappers.address, "fatbin wrapper")
        if word not in {0, addend}:
            raise FinishError(
                f"the wrapper's pointer at {place:#x} is {word:#x} in the file, {addend:#x} when loaded."
            )
        if word and moves[addend] != addend:
            at = wrappers.offset + place - wrappers.address
            changes.append(Change(at, _WORD.size, _WORD.pack(moves[addend])))
    return [*changes, *_symbols(elf, section, moves)]


def _wrapper_section(elf: ElfFile) -> Section:
    found = elf.named(WRAPPERS)
    if len(found) != 1 or found[0].size % WRAPPER.size:
        raise FinishError(f"one section {WRAPPERS} was wanted, found {len(found)}.")
    return found[0]


def _relocated(
    elf: ElfFile, section: Section, wrappers: Section, moves: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Address of each wrapper's pointer -> where in the file its relocation's addend stands, and that addend."""
    places = range(wrappers.address + _POINTER_AT, wrappers.address + wrappers.size, WRAPPER.size)
    found: dict[int, tuple[int, int]] = {}
    for at, place, kind, addend in _relocations(elf):
        if kind != RELATIVE[elf.machine_number]:
            if place in places:
                raise FinishError(f"the wrapper's pointer at {place:#x} is filled by the loader in another way.")
        elif place in places or section.address <= addend < section.address + section.size:
            if place not in places or addend not in moves or place in found:
                raise FinishError(f"the pointer at {place:#x} leads into {section.name}, and is no wrapper's.")
            found[place] = at, addend
    if len(found) != len(places):
        raise FinishError(
            f"{len(places)} wrappers were wanted among the loader's relocations, found {len(found)}."
        )
    return found


def _relocations(elf: ElfFile) -> Iterator[tuple[int, int, int, int]]:
    """Of each relocation of the loader: where its addend stands in the file, its place, kind and addend."""
    for table in elf.of_type(SHT_RELA):
        if table.flags & SHF_ALLOC:
            content = elf.content(table)
            rows = content.take(0, content.size // RELA.size * RELA.size, "relocations")
            for number, (place, info, addend) in enumerate(RELA.iter_unpack(rows)):
                yield table.offset + number * RELA.size + _ADDEND_AT, place, info, addend


def _symbols(elf: ElfFile, section: Section, moves: Mapping[int, int]) -> Iterator[Change]:
    """Local symbols of containers are for debuggers, and follow; an exported one could be used in any way."""
    for table in (*elf.of_type(SHT_SYMTAB), *elf.of_type(SHT_DYNSYM)):
        content = elf.content(table)
        rows = content.take(0, content.size // SYMBOL.size * SYMBOL.size, "symbols")
        for number, (_, _, _, where, value, _) in enumerate(SYMBOL.iter_unpack(rows)):
            if where != section.index or (value == section.address and value not in moves):
                continue
            if table.type == SHT_DYNSYM or value not in moves:
                raise FinishError(f"a symbol at {value:#x} names a place in {section.name} that is no container.")
            if moves[value] != value:
                at = table.offset + number * SYMBOL.size + _VALUE_AT
                yield Change(at, _WORD.size, _WORD.pack(moves[value]))
