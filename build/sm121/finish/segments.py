"""What the program headers of a finished library may differ in: one segment ends earlier, the next begins earlier."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sm121.device.elf import PT_LOAD
from sm121.device.programs import PT_GNU_RELRO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device.programs import Program, Programs

EXECUTE, WRITE = 1, 2
"""Rights, as the flags of a program header have them (PF_...)."""


def rights(programs: Programs, address: int) -> tuple[int, int]:
    """The rights at an address once the loader is done, and the address up to which they hold; 0 if nothing is there."""
    for row in programs.rows:
        if row.type == PT_LOAD and row.address <= address < row.address + row.memory:
            flags, end = row.flags, row.address + row.memory
            break
    else:
        return 0, address
    for row in programs.rows:
        if row.type == PT_GNU_RELRO:
            if row.address <= address < row.address + row.memory:
                flags, end = flags & ~WRITE, min(end, row.address + row.memory)
            elif address < row.address:
                end = min(end, row.address)
    return flags, end


def segment_differences(old: Programs, new: Programs, device: int) -> Iterator[str]:
    """What differs, as sentences. `device` is the address at which the device code of the new library ends.

    The segment that ends there may be shorter than it was; the one after it, and the part that becomes read-only, may
    begin earlier by the same amount. Nothing else may differ but offsets in the file.
    """
    if old.offset != new.offset or [_kind(row) for row in old.rows] != [_kind(row) for row in new.rows]:
        yield "the program headers are not those that there were."
        return
    shortened = False
    begin: dict[int, int] = {}
    for a, b in zip(old.rows, new.rows, strict=True):
        if a.type == PT_LOAD:
            if a.address != b.address and shortened:
                begin[a.address] = b.address
            shortened = _ends(b) == (device, device) != _ends(a)
            same = _ends(a) == _ends(b) or shortened
        else:
            same = _ends(a) == _ends(b) and (a.size > 0 or a.offset == b.offset)
        if not same or b.address not in {a.address, begin.get(a.address)}:
            yield f"the program header for {a.address:#x} begins or ends elsewhere: {b.address:#x}."
    loads = [row for row in new.rows if row.type == PT_LOAD]
    for a, b in pairwise(loads):
        if a.address + a.memory > b.address or a.end > b.offset:
            yield f"the segments at {a.address:#x} and {b.address:#x} overlap or are out of order."
    for row in loads:
        if (row.address - row.offset) % max(1, row.align):
            yield f"the segment at {row.address:#x} breaks its alignment of {row.align:#x}."


def _kind(row: Program) -> tuple[int, ...]:
    """What must not change in a program header, wherever it points."""
    return row.type, row.flags, row.align, row.physical - row.address


def _ends(row: Program) -> tuple[int, int]:
    """The addresses at which it ends: what comes from the file, and the whole."""
    return row.address + row.size, row.address + row.memory
