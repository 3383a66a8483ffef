"""Proof that a finished library is the old one but for its device code. It reads bytes, not what the writer meant.

If every container stayed where it was, all bytes outside the sections of device code must be equal. If containers
moved, what the dynamic loader maps must be equal at every address, and every section must be equal, but for the device
code, the table of program headers, and those pointers that must follow the containers: each of them is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.device.elf import PT_LOAD, RELA, SECTION, SHT_DYNSYM, SHT_NOBITS, SHT_RELA, SHT_SYMTAB, SYMBOL, ElfFile
from sm121.device.payload import payload
from sm121.device.programs import SECTIONS_AT, Programs
from sm121.device.reader import FATBIN_SECTIONS, read_device_code
from sm121.device.window import Remarks, Window
from sm121.device.wrappers import SECTION as WRAPPERS
from sm121.device.wrappers import wrappers
from sm121.device.write import container as container_of
from sm121.errors import DamagedError, FinishError
from sm121.finish.segments import EXECUTE, rights, segment_differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sm121.device.elf import Section
    from sm121.device.fatbin import DeviceCode
    from sm121.device.programs import Program
    from sm121.device.window import Buffer

_STEP = 1 << 20
_WORD = 8
_SHF_ALLOC, _SHF_EXECINSTR = 2, 4
_QUAD = struct.Struct("<Q")


def library_differences(
    before: Buffer, after: Buffer, old: DeviceCode, entries: Mapping[int, Sequence[bytes]]
) -> list[str]:
    """Everything in a finished library that is not as it should be, as sentences.

    `old` is what the reader found in the library `before`; `entries` are the entries that each of its containers
    should have now. All of `after` is read anew, down to the bytes of every image.
    """
    try:
        new = read_device_code(after)
    except DamagedError as error:
        return list(error.problems)
    problems = [*new.damage, *new.notices]
    for container in new.containers:
        found = Window.over(after).take(container.offset, container.size, "container")
        if found != container_of(entries.get(container.index, ())):
            problems.append(f"unit {container.index} does not hold the images that it should.")
    try:
        for image in new.images:
            payload(after, image)
    except DamagedError as error:
        problems += error.problems
    return problems + host_differences(before, after, old, new)


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
        if [each.name for each in first.sections] != [each.name for each in second.sections]:
            return ["the sections are not those that there were."]
        device = max(each.address + each.size for each in second.named(*FATBIN_SECTIONS))
        if problems := list(segment_differences(old, new, device)):
            return problems
        self.allowed = [
            range(SECTIONS_AT, SECTIONS_AT + _WORD),
            range(old.offset, old.offset + len(old.packed())),
            *self._device(first, addresses=False),
        ]
        problems += self._pointers()
        problems += self._sections(old, new)
        problems += self._loaded(old, new)
        problems += self._added(old, new)
        problems += [
            f"a program header at {row.offset:#x} is not what is loaded at {row.address:#x}."
            for row in new.rows
            if row.size and row.type != PT_LOAD and second.offset_of(row.address) != row.offset
        ]
        if second.window.size - first.window.size != new.sections_at - old.sections_at:
            problems.append("the file ends at another place.")
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

    def _sections(self, old: Programs, new: Programs) -> Iterator[str]:
        """Every section has the header and the content that it had, wherever in the file it is now."""
        for a, b in zip(self.first.sections, self.second.sections, strict=True):
            device = a.name in FATBIN_SECTIONS
            first, second = (
                _without_place(elf, programs, a.index, size=not device)
                for elf, programs in ((self.first, old), (self.second, new))
            )
            if first != second or a.name != b.name:
                yield f"section {a.name or a.index} has another header."
            elif (
                a.size
                and a.flags & _SHF_ALLOC
                and a.type != SHT_NOBITS
                and self.second.offset_of(a.address) != b.offset
            ):
                yield f"section {a.name} is not what is loaded at its address."
            elif not device and a.type != SHT_NOBITS:
                yield from self._compare(
                    range(a.offset, a.offset + a.size), b.offset - a.offset, f"section {a.name}"
                )

    def _loaded(self, old: Programs, new: Programs) -> Iterator[str]:
        """Every byte that was mapped is mapped at the same address with the same rights."""
        for row in old.rows:
            if row.type != PT_LOAD:
                continue
            for span in without(range(row.offset, row.end), self.allowed):
                yield from self._mapped(row, span, old, new)

    def _added(self, old: Programs, new: Programs) -> Iterator[str]:
        """What is loaded where nothing but device code was is zero."""
        known = [
            range(row.address + span.start - row.offset, row.address + span.stop - row.offset)
            for row in old.rows
            if row.type == PT_LOAD
            for span in without(range(row.offset, row.end), self._device(self.first, addresses=False))
        ]
        known += self._device(self.second, addresses=True)
        for row in new.rows:
            if row.type == PT_LOAD:
                for span in without(range(row.address, row.address + row.size), known):
                    start = row.offset + span.start - row.address
                    if self.second.window.take(start, len(span), "filling").strip(b"\0"):
                        yield f"bytes were added at address {span.start:#x}."

    @staticmethod
    def _device(elf: ElfFile, *, addresses: bool) -> list[range]:
        """Where the device code is, in memory or in the file."""
        starts = [(each.address if addresses else each.offset, each.size) for each in elf.named(*FATBIN_SECTIONS)]
        return [range(start, start + size) for start, size in starts]

    def _mapped(self, row: Program, span: range, old: Programs, new: Programs) -> Iterator[str]:
        start = span.start
        while start < span.stop:
            address = row.address + start - row.offset
            wanted, until = rights(old, address)
            found, end = rights(new, address)
            offset = self.second.offset_of(address)
            size = min(span.stop - start, until - address, end - address)
            # Tables that shared a segment with code could be executed; they need not.
            if wanted & EXECUTE and not self._is_code(start, start + size):
                wanted, found = wanted & ~EXECUTE, found & ~EXECUTE
            if offset is None or found != wanted or size <= 0:
                yield f"address {address:#x} should be loaded with rights {wanted}, found {found}."
                return
            yield from self._compare(range(start, start + size), offset - start, f"address {address:#x}")
            start += size

    def _is_code(self, start: int, end: int) -> bool:
        """Whether a section with instructions has bytes between two offsets of the old file."""
        return any(
            each.flags & _SHF_EXECINSTR and each.offset < end and each.offset + each.size > start
            for each in self.first.sections
        )

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


def _without_place(elf: ElfFile, programs: Programs, index: int, *, size: bool) -> tuple[int, ...]:
    """A section's header without its offset in the file, and without its size if that may change."""
    at = programs.sections_at + index * SECTION.size
    name, kind, flags, address, _, length, *rest = elf.window.unpack(SECTION, at, "section header")
    return name, kind, flags, address, length if size else 0, *rest


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
