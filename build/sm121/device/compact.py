"""A finished library without holes: containers moved together, the freed room taken out of the file.

No address of host code or host data changes, and no header is added. The containers move to the start of
`.nv_fatbin`, and the loader's relocations of their wrappers follow. Whole pages of the freed room then leave the file.
The segment that held them ends with the last container. What stood behind the room in that segment (tables for
unwinding) keeps its addresses as the beginning of the next segment: that one is writable, but what lies before its
data belongs to the part that the loader makes read-only before any code runs (PT_GNU_RELRO).

Whatever is laid out differently is refused, and can be changed in place. Whoever uses this proves the result from
the new file alone, without this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.device.elf import PT_LOAD, SECTION, SHT_NOBITS, SHT_NULL
from sm121.device.fatbin import ALIGNMENT
from sm121.device.pointers import RELATIVE, SHF_ALLOC, follow
from sm121.device.programs import PT_GNU_RELRO, PT_INTERP, SECTIONS_AT, WORD, Programs
from sm121.device.reader import FATBIN_SECTIONS
from sm121.device.rewrite import Change
from sm121.errors import FinishError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.device.elf import ElfFile, Section
    from sm121.device.fatbin import Container
    from sm121.device.programs import Program

_ET_DYN = 3


def compact(elf: ElfFile, containers: Sequence[Container], new: Mapping[int, bytes]) -> list[Change]:
    """Lay the containers (the new ones by index, the others as they are) one after the other.

    The file becomes shorter by whole pages, or keeps its size if no whole page is free. FinishError for a file whose
    layout does not allow it.
    """
    section = _section(elf)
    programs = Programs.read(elf)
    body, moves = _packed(elf, section, containers, new)
    if len(body) > section.size:
        raise FinishError(f"{section.name} has room for {section.size} bytes, its new content needs {len(body)}.")
    changes = follow(elf, section, moves)
    cut = _Cut.find(elf, programs, section, section.offset + len(body))
    if not cut.size:
        return [*changes, Change(section.offset, section.size, body.ljust(section.size, b"\0"))]
    room = Change(section.offset, cut.end - section.offset, body.ljust(cut.start - section.offset, b"\0"))
    gap = Change(cut.rest, 0, bytes(cut.gap))
    table = replace(programs, rows=cut.rows(programs)).packed()
    return [
        *changes,
        room,
        Change(cut.end, cut.follows - cut.end, bytes(cut.follows - cut.end)),
        *([gap] if cut.gap else []),
        Change(programs.offset, len(table), table),
        Change(SECTIONS_AT, WORD.size, WORD.pack(cut.moved(programs.sections_at))),
        _sections(elf, programs, section, cut, len(body)),
    ]


def _section(elf: ElfFile) -> Section:
    if elf.type_number != _ET_DYN or elf.machine_number not in RELATIVE:
        raise FinishError(
            f"a shared library for x86_64 or aarch64 was wanted, found {elf.type} for {elf.machine}."
        )
    found = elf.named(*FATBIN_SECTIONS)
    if len(found) != 1 or found[0].type == SHT_NOBITS or not found[0].flags & SHF_ALLOC:
        raise FinishError(f"one loaded section {FATBIN_SECTIONS[0]} was wanted, found {len(found)}.")
    return found[0]


def _packed(
    elf: ElfFile, section: Section, containers: Sequence[Container], new: Mapping[int, bytes]
) -> tuple[bytes, dict[int, int]]:
    """The containers one after the other, and where each goes: old address -> new address."""
    pieces, moves, used = [], {}, 0
    for each in containers:
        content = new.get(each.index)
        if content is None:
            content = elf.window.take(each.offset - elf.window.base, each.size, "container")
        moves[section.address + each.offset - elf.window.base - section.offset] = section.address + used
        pieces.append(content + bytes(-len(content) % ALIGNMENT))
        used += len(pieces[-1])
    return b"".join(pieces), moves


@dataclass(frozen=True, slots=True)
class _Cut:
    """Bytes `start` to `end` of the old file, whole pages, that leave it; `size` 0 if there are none.

    `segment` holds them, `follows` is where its content goes on behind the section, `rest` where it ends. `gap` bytes
    are added there, so that file and memory of the next segment run alike from its new beginning on.
    """

    start: int
    end: int
    used: int
    follows: int
    segment: Program
    after: Program

    @classmethod
    def find(cls, elf: ElfFile, programs: Programs, section: Section, used: int) -> _Cut:
        """The largest cut behind offset `used`. FinishError if the segments are not as linkers lay them out."""
        if any(row.type == PT_INTERP for row in programs.rows):
            raise FinishError("a shared library was wanted, found a program.")
        segment, after = _neighbours(programs, section)
        page = programs.page
        starts = [each.offset for each in elf.sections if each.size and each.type not in {SHT_NULL, SHT_NOBITS}]
        follows = min([segment.end, *(each for each in starts if each >= section.offset + section.size)])
        if any(segment.end <= start < after.offset for start in starts):
            raise FinishError("there is content between the segments, where only padding was wanted.")
        start = used + -used % page
        return cls(start, max(start, follows - follows % page), used, follows, segment, after)

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def rest(self) -> int:
        return self.segment.end

    @property
    def gap(self) -> int:
        memory = self.after.address - self.segment.address - self.segment.memory
        return memory - (self.after.offset - self.rest)

    def moved(self, offset: int) -> int:
        """Where in the new file the byte at `offset` of the old one stands."""
        return offset - (self.size if offset >= self.end else 0) + (self.gap if offset >= self.rest else 0)

    def rows(self, programs: Programs) -> tuple[Program, ...]:
        """The program headers of the new file."""
        length = self.used - self.segment.offset
        lead = self.after.address - (self.segment.address + self.end - self.segment.offset)
        found = []
        for row in programs.rows:
            if row is self.segment:
                found.append(replace(row, size=length, memory=length))
            elif row is self.after or (row.type == PT_GNU_RELRO and row.address == self.after.address):
                found.append(
                    replace(
                        row, offset=self.start, address=row.address - lead, physical=row.physical - lead,
                        size=row.size + lead, memory=row.memory + lead,
                    )
                )  # fmt: skip
            else:
                found.append(replace(row, offset=self.moved(row.offset)) if row.size else row)
        return tuple(found)


def _neighbours(programs: Programs, section: Section) -> tuple[Program, Program]:
    """The segment that loads the section, and the next: writable, with its beginning read-only after relocation."""
    start, end = section.offset, section.offset + section.size
    loads = [row for row in programs.rows if row.type == PT_LOAD]
    over = [row for row in programs.rows if row.size and row.offset < end and row.end > start]
    if len(over) != 1 or over[0] not in loads[:-1] or over[0].offset > start or over[0].end < end:
        raise FinishError(f"{section.name} should lie in one segment, and another follow; {len(over)} cover it.")
    segment, after = over[0], loads[loads.index(over[0]) + 1]
    page = programs.page
    shift = after.address - after.offset - (segment.address - segment.offset)
    if (
        segment.size != segment.memory
        or segment.address - segment.offset != section.address - section.offset
        or (segment.address - segment.offset) % page
        or shift % page
        or shift < 0
        or not any(
            r.type == PT_GNU_RELRO and (r.address, r.offset) == (after.address, after.offset)
            for r in programs.rows
        )
    ):
        raise FinishError(f"the segments from {section.name} on are not laid out as linkers do it.")
    return segment, after


def _sections(elf: ElfFile, programs: Programs, section: Section, cut: _Cut, used: int) -> Change:
    """The section headers, with what lies behind the cut moved and `.nv_fatbin` as large as its content."""
    size = SECTION.size * len(elf.sections)
    table = bytearray(elf.window.take(programs.sections_at, size, "section headers"))
    for each in elf.sections:
        row = list(SECTION.unpack_from(table, each.index * SECTION.size))
        row[4] = cut.moved(each.offset)
        if each is section:
            row[5] = used
        SECTION.pack_into(table, each.index * SECTION.size, *row)
    return Change(programs.sections_at, size, bytes(table))
