"""The program header table of a library, to be written anew."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sm121.device.elf import PT_LOAD
from sm121.errors import FinishError

if TYPE_CHECKING:
    from sm121.device.elf import ElfFile

PT_INTERP, PT_GNU_RELRO = 3, 0x6474E552
WORD = struct.Struct("<Q")
SECTIONS_AT = 0x28
"""Where in the ELF header the offset of the section headers stands."""
_PROGRAMS_AT, _COUNTS_AT = 0x20, 0x36
_COUNTS = struct.Struct("<HHHH")
_ROW = struct.Struct("<IIQQQQQQ")
_EXTENDED = 0xFFFF


@dataclass(frozen=True, slots=True)
class Program:
    """One program header with all its fields; sizes in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    align: int

    @property
    def end(self) -> int:
        """The offset in the file at which it ends."""
        return self.offset + self.size

    def packed(self) -> bytes:
        return _ROW.pack(
            self.type, self.flags, self.offset, self.address, self.physical, self.size, self.memory, self.align
        )


@dataclass(frozen=True, slots=True)
class Programs:
    """The table: its rows, where it stands in the file, and where the section headers do."""

    offset: int
    rows: tuple[Program, ...]
    sections_at: int

    @classmethod
    def read(cls, elf: ElfFile) -> Self:
        """FinishError for a file without the two tables, or with more rows than its header can count."""
        (at,) = elf.window.unpack(WORD, _PROGRAMS_AT, "ELF header")
        (sections_at,) = elf.window.unpack(WORD, SECTIONS_AT, "ELF header")
        row_size, count, _, sections = elf.window.unpack(_COUNTS, _COUNTS_AT, "ELF header")
        if not at or row_size != _ROW.size or not 0 < count < _EXTENDED or not sections_at or not sections:
            raise FinishError("tables of program headers and of section headers were wanted, found not both.")
        data = elf.window.take(at, count * _ROW.size, "program headers")
        return cls(at, tuple(Program(*row) for row in _ROW.iter_unpack(data)), sections_at)

    def packed(self) -> bytes:
        return b"".join(row.packed() for row in self.rows)

    @property
    def page(self) -> int:
        """The alignment that every loaded segment keeps; at least 4096 bytes."""
        return max([4096, *(row.align for row in self.rows if row.type == PT_LOAD)])
