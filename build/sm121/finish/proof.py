"""Proof that a finished library is the old one but for its device code. It reads bytes, not what the writer meant.

If every container stayed where it was, all bytes outside the sections of device code must be equal. If containers
moved, what the dynamic loader maps must be equal at every address, and every section must be equal, but for the device
code, the table of program headers, and those pointers that must follow the containers: each of them is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from sm121.device.elf import PT_LOAD, RELA, SHT_DYNSYM, SHT_NOBITS, SHT_RELA, SHT_SYMTAB, SYMBOL, ElfFile
from sm121.device.programs import PT_GNU_RELRO, SECTIONS_AT, Programs
from sm121.device.reader import FATBIN_SECTIONS
from sm121.device.window import Remarks
from sm121.device.wrappers import SECTION as WRAPPERS
from sm121.device.wrappers import wrappers
from sm121.errors import DamagedError, FinishError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.device.elf import Section
    from sm121.device.fatbin import DeviceCode
    from sm121.device.programs import Program
    from sm121.device.window import Buffer, Window

_STEP = 1 << 20
_WRITE = 2
_WORD = 8
_SHF_ALLOC = 2
_QUAD = struct.Struct("<Q")


def host_differences(before: Buffer, after: Buffer, old: DeviceCode, new: DeviceCode) -> list[str]:
    """What differs between two libraries apart from device code, as sentences; empty if their host code is the same.

    `old` and `new` are what the reader found in them.
    """
    if len(old.containers) != len(new.containers):
        return [f"{len(old.containers)} containers were wanted, found {len(new.containers)}."]
    moved = {a.offset: b.offset for a, b in zip(old.containers, new.containers, strict=True)}
    try:
        first, second = ElfFile.parse(before), ElfFile.parse(after)
        problems = [f"it cannot be read: {sentence}" for sentence in second.damage]
        problems += _wrapper_differences(first, second, moved)
        if first.window.size == second.window.size and all(a == b for a, b in moved.items()):
            return problems + list(_outside(first, second))
        return problems + _Comparison(first, second, moved).differences()
    except (DamagedError, FinishError) as error:
        return list(error.problems)


def _wrapper_differences(first: ElfFile, second: ElfFile, moved: dict[int, int]) -> Iterator[str]:
    """Each wrapper must lead to the container that it led to before."""
    damage = Remarks()
    found = zip(wrappers(first, damage), wrappers(second, damage), strict=False)
    yield from damage.all()
    for number, (a, b) in enumerate(found):
        wanted = None if a.container is None else moved.get(a.container)
        if b.container != wanted:
            yield f"wrapper {number} should lead to {wanted}, it leads to {b.container}."


def _outside(first: ElfFile, second: ElfFile) -> Iterator[str]:
    device = [range(each.offset, each.offset + each.size) for each in first.named(*FATBIN_SECTIONS)]
    for span in without(range(first.window.size), device):
        if not _equal(first.window, span.start, second.window, span.start, len(span)):
            yield f"bytes between {span.start:#x} and {span.stop:#x} differ outside the device code."


@dataclass(slots=True)
class _Comparison:
    """Compares two libraries whose containers lie at different places."""

    first: ElfFile
    second: ElfFile
    moved: dict[int, int]
    allowed: list[range] = field(default_factory=list)
    """Bytes of the old file that may differ, since their new content was checked here."""

    def differences(self) -> list[str]:
        first, second = self.first, self.second
        old, new = Programs.read(first), Programs.read(second)
        if len(first.sections) != len(second.sections):
            return [f"{len(first.sections)} sections were wanted, found {len(second.sections)}."]
        self.allowed = [
            range(SECTIONS_AT, SECTIONS_AT + _WORD),
            range(old.offset, old.offset + len(old.packed())),
            *(range(each.offset, each.offset + each.size) for each in first.named(*FATBIN_SECTIONS)),
        ]
        problems = list(self._pointers())
        problems += self._sections()
        problems += self._loaded(old, new)
        problems += self._programs(old, new)
        return problems

    def _address(self, elf: ElfFile, offset: int) -> int:
        """The address at which a byte of the device code is loaded."""
        for section in elf.named(*FATBIN_SECTIONS):
            if section.offset <= offset < section.offset + section.size:
                return section.address + offset - section.offset
        raise DamagedError(f"the container at {offset:#x} lies in no section of device code.")

    def _pointers(self) -> Iterator[str]:
        """What must follow the containers: relocations of the wrappers, the wrappers' words, local symbols."""
        follows = {self._address(self.first, a): self._address(self.second, b) for a, b in self.moved.items()}
        device = {each.index for each in self.first.named(*FATBIN_SECTIONS)}
        held = self.first.named(WRAPPERS)
        words = [each.offset + at for each in held for at in range(_WORD, each.size, 3 * _WORD)]
        places = {each.address + at for each in held for at in range(_WORD, each.size, 3 * _WORD)}
        for table, other in zip(self.first.sections, self.second.sections, strict=True):
            if table.type == SHT_RELA and table.flags & _SHF_ALLOC:
                for at, (place, _, addend) in _rows(self.first, table, RELA):
                    if place in places:
                        yield from self._follow(table, other, at + 2 * _WORD, addend, follows)
            elif table.type in {SHT_SYMTAB, SHT_DYNSYM}:
                for at, (_, _, _, where, value, _) in _rows(self.first, table, SYMBOL):
                    if where in device and value in follows:
                        yield from self._follow(table, other, at + _WORD, value, follows)
            elif table in held:
                for at in words:
                    value = _number(self.first.window, at)
                    if value:
                        yield from self._follow(table, other, at - table.offset, value, follows)

    def _follow(
        self, table: Section, other: Section, at: int, value: int, follows: dict[int, int]
    ) -> Iterator[str]:
        found = _number(self.second.window, other.offset + at)
        if found != follows.get(value):
            yield f"{table.name}: the word at {at:#x} was {value:#x} and is {found:#x}, which is no place it should be."
        self.allowed.append(range(table.offset + at, table.offset + at + _WORD))

    def _sections(self) -> Iterator[str]:
        for a, b in zip(self.first.sections, self.second.sections, strict=True):
            device = a.name in FATBIN_SECTIONS
            same = (a.name, a.type, a.flags, a.address, a.link, a.info, 0 if device else a.size)
            if same != (b.name, b.type, b.flags, b.address, b.link, b.info, 0 if device else b.size):
                yield f"section {a.name or a.index} has another header."
            elif not device and a.type != SHT_NOBITS:
                yield from self._compare(
                    range(a.offset, a.offset + a.size), b.offset - a.offset, f"section {a.name}"
                )

    def _loaded(self, old: Programs, new: Programs) -> Iterator[str]:
        """Every byte that was mapped is mapped at the same address with the same rights, file content or zero."""
        for row in old.rows:
            if row.type != PT_LOAD:
                continue
            for span in without(range(row.offset, row.end), self.allowed):
                yield from self._mapped(row, span, old, new)
            zeroed = (row.address + row.size, row.address + row.memory)
            if row.memory > row.size and zeroed not in {
                (other.address + other.size, other.address + other.memory)
                for other in new.rows
                if other.type == PT_LOAD and other.flags == row.flags
            }:
                yield f"the zeroed memory at {zeroed[0]:#x} is not the same."

    def _mapped(self, row: Program, span: range, old: Programs, new: Programs) -> Iterator[str]:
        start = span.start
        while start < span.stop:
            address = row.address + start - row.offset
            wanted, until = _rights(old, address)
            found, end = _rights(new, address)
            offset = self.second.offset_of(address)
            size = min(span.stop - start, until - address, end - address)
            if offset is None or found != wanted or size <= 0:
                yield f"address {address:#x} should be loaded with rights {wanted}, found {found}."
                return
            yield from self._compare(range(start, start + size), offset - start, f"address {address:#x}")
            start += size

    def _programs(self, old: Programs, new: Programs) -> Iterator[str]:
        """The headers that load nothing cover what they covered; segments come in order and keep their alignment."""
        apart = {PT_LOAD, PT_GNU_RELRO}
        plain = [row for row in old.rows if row.type not in apart]
        others = [row for row in new.rows if row.type not in apart]
        if old.offset != new.offset or [(r.type, r.flags, r.address, r.size, r.memory) for r in plain] != [
            (r.type, r.flags, r.address, r.size, r.memory) for r in others
        ]:
            yield "the program headers that load nothing differ."
        for row in new.rows:
            if row.size and row.type != PT_LOAD and self.second.offset_of(row.address) != row.offset:
                yield f"a program header at {row.offset:#x} is not what is loaded at {row.address:#x}."
        loads = [row for row in new.rows if row.type == PT_LOAD]
        for a, b in pairwise(loads):
            if a.address + a.memory > b.address or a.end > b.offset:
                yield f"the segments at {a.address:#x} and {b.address:#x} overlap or are out of order."
        for row in loads:
            if (row.address - row.offset) % max(1, row.align):
                yield f"the segment at {row.address:#x} breaks its alignment of {row.align:#x}."

    def _compare(self, span: range, shift: int, what: str) -> Iterator[str]:
        for part in without(span, self.allowed):
            if not _equal(self.first.window, part.start, self.second.window, part.start + shift, len(part)):
                yield f"{what} differs between {part.start:#x} and {part.stop:#x} of the old file."


def without(whole: range, parts: Iterable[range]) -> Iterator[range]:
    """The pieces of `whole` that are in none of `parts`."""
    at = whole.start
    for part in sorted(parts, key=lambda each: each.start):
        if part.stop <= at or part.start >= whole.stop:
            continue
        if part.start > at:
            yield range(at, part.start)
        at = max(at, part.stop)
    if at < whole.stop:
        yield range(at, whole.stop)


def _rights(programs: Programs, address: int) -> tuple[int, int]:
    """The rights (PF_...) at an address once the loader is done, and the address up to which they hold."""
    for row in programs.rows:
        if row.type == PT_LOAD and row.address <= address < row.address + row.memory:
            flags, end = row.flags, row.address + row.memory
            break
    else:
        return 0, address
    for row in programs.rows:
        if row.type == PT_GNU_RELRO:
            if row.address <= address < row.address + row.memory:
                flags, end = flags & ~_WRITE, min(end, row.address + row.memory)
            elif address < row.address:
                end = min(end, row.address)
    return flags, end


def _rows(elf: ElfFile, table: Section, layout: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The rows of a table, each with its place in it."""
    content = elf.content(table)
    data = content.take(0, content.size // layout.size * layout.size, f"section {table.name}")
    for number, row in enumerate(layout.iter_unpack(data)):
        yield number * layout.size, row


def _number(window: Window, offset: int) -> int:
    (value,) = window.unpack(_QUAD, offset, "pointer")
    return int(value)


def _equal(first: Window, start: int, second: Window, there: int, size: int) -> bool:
    """Compare in steps, so that a large library costs little memory. False if either ends before."""
    if not first.holds(start, size) or not second.holds(there, size):
        return False
    return all(
        first.take(start + at, step := min(_STEP, size - at), "") == second.take(there + at, step, "")
        for at in range(0, size, _STEP)
    )
