"""What a kernel keeps in local memory, exactly as ptxas says it with `-v`, from the finished cubin.

ptxas of CUDA 13 marks each instruction that spills or refills a register (attribute 0x55 of `.nv.info.KERNEL`: pairs of
u32 kind and u32 offset, kind 1; nvdisasm shows them as `SpillRefill`). Bytes are the width of the access, bits 73 to 75 of
the instruction. Measured on ptxas 13.0.88 for sm_80, sm_90a, sm_120f and sm_121a; the sums equal those that `-v` prints.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.cubin import records
from sm121.device.elf import SHT_SYMTAB, SYMBOL, ElfFile
from sm121.device.sass import WORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.device.window import Buffer, Window

_FRAME, _ANNOTATIONS = 0x11, 0x55
_SPILL = 1
_PAIR = struct.Struct("<II")
_STORE, _LOAD, _FORMS = 0x187, 0x183, 0x1FF
_WIDTHS = (1, 1, 2, 2, 4, 8, 16, 0)
_INFO, _TEXT = ".nv.info.", ".text."


@dataclass(frozen=True, slots=True)
class Local:
    """Bytes: the stack frame of a thread, and what spilling stores and loads.

    `marked` is False if the compiler marked nothing although the code uses local memory: it may be too old to mark
    spills, or keep arrays there; then `stores` and `loads` count every local access, as the most that can be spilled.
    """

    stack: int = 0
    stores: int = 0
    loads: int = 0
    marked: bool = True


def local_memory(data: Buffer, *, marks_spills: bool) -> Mapping[str, Local]:
    """Kernel -> its local memory; kernels that use none may be absent. `marks_spills`: made by ptxas 13 or newer.

    Raises DamagedError for what is no cubin, or one with records cut off.
    """
    elf = ElfFile.parse(data)
    marks = {
        section.name.removeprefix(_INFO): _marks(content)
        for section in elf.sections
        if section.name.startswith(_INFO)
        for content in [elf.content(section)]
    }
    stacks = _stacks(elf)
    found = {}
    for section in elf.sections:
        if section.name.startswith(_TEXT):
            name = section.name.removeprefix(_TEXT)
            content = elf.content(section)
            code = content.take(0, content.size, "machine code")
            offsets = marks.get(name, [])
            known = marks_spills or bool(offsets)
            stores, loads = _accesses(code, offsets if known else range(0, len(code) - WORD + 1, WORD))
            found[name] = Local(stacks.get(name, 0), stores, loads, known or not (stores or loads))
    return found


def _marks(content: Window) -> list[int]:
    offsets: list[int] = []
    for attribute, _, value in records(content):
        if attribute == _ANNOTATIONS:
            pairs = value.take(0, value.size // _PAIR.size * _PAIR.size, "annotations")
            offsets += [offset for kind, offset in _PAIR.iter_unpack(pairs) if kind == _SPILL]
    return offsets


def _accesses(code: bytes, offsets: Iterable[int]) -> tuple[int, int]:
    stores = loads = 0
    for offset in offsets:
        word = code[offset : offset + WORD]
        if len(word) < WORD:
            continue
        opcode = int.from_bytes(word[:2], "little") & _FORMS
        width = _WIDTHS[word[9] >> 1 & 7]
        stores += width if opcode == _STORE else 0
        loads += width if opcode == _LOAD else 0
    return stores, loads


def _stacks(elf: ElfFile) -> dict[str, int]:
    """Function -> bytes of its frame."""
    frames = {
        symbol: size
        for section in elf.named(".nv.info")
        for attribute, _, value in records(elf.content(section))
        if attribute == _FRAME and value.size == _PAIR.size
        for symbol, size in [value.unpack(_PAIR, 0, "frame size")]
    }
    named = {}
    for table in elf.of_type(SHT_SYMTAB)[:1]:
        names, content = elf.strings(elf.linked(table)), elf.content(table)
        for symbol, size in frames.items():
            if content.holds(symbol * SYMBOL.size, SYMBOL.size):
                name = names.at(content.unpack(SYMBOL, symbol * SYMBOL.size, "symbol")[0])
                if name is not None:
                    named[name] = size
    return named
