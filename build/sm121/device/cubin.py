"""Cubins: ELF files of machine 190. Target, toolkit, kernels.

Two layouts of the header are in use (measured on CUDA 12.8 to 13.5): the old one (OS ABI 0x33) of CUDA 12 below
sm_100, and the new one (OS ABI 0x41) of CUDA 13 and of sm_100 and above.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.elf import EM_CUDA, SHT_SYMTAB, ElfFile
from sm121.errors import DamagedError
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from sm121.device.window import Buffer, Window

_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")
_TOOLKIT = struct.Struct("<6I")
_COMPAT = struct.Struct("<BBH")
_OLD_ABI = 0x33
_STT_FUNC = 2
_STO_ENTRY = 0x10


@dataclass(frozen=True, slots=True)
class Kernel:
    """An entry function. `size` is its machine code in bytes, `registers` per thread if the cubin says so."""

    name: str
    size: int
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What made the cubin: `ptxas` or `nvlink`, `13.0.88`, and its arguments (`-arch sm_120f -m 64`)."""

    tool: str
    version: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Cubin:
    """What a cubin says of itself.

    `arch` is None if the header is of no known layout. `suffix_known` is False if it cannot be told whether the
    target is generic or the family.
    """

    arch: ArchSpec | None
    suffix_known: bool
    kernels: tuple[Kernel, ...]
    toolkit: Toolkit | None
    damage: tuple[str, ...]


def read_cubin(data: Buffer | Window) -> Cubin:
    """Read a cubin. DamagedError if it is none; `damage` names what else is wrong."""
    elf = ElfFile.parse(data)
    if elf.machine_number != EM_CUDA:
        raise DamagedError(f"not a cubin: wanted ELF machine {EM_CUDA}, found {elf.machine_number}.")
    damage = list(elf.damage)
    try:
        toolkit = _toolkit(elf)
    except DamagedError as error:
        toolkit = None
        damage += error.problems
    arch, known = _arch(elf, toolkit)
    try:
        kernels = _kernels(elf)
    except DamagedError as error:
        kernels = ()
        damage += error.problems
    return Cubin(arch, known, kernels, toolkit, tuple(damage))


def _arch(elf: ElfFile, toolkit: Toolkit | None) -> tuple[ArchSpec | None, bool]:
    if elf.os_abi == _OLD_ABI:
        sm, suffix, known = elf.flags & 0xFF, "a" if elf.flags & 0x800 else "", True
    else:
        sm, suffix, known = elf.flags >> 8 & 0xFF, "", False
        match = re.search(r"-arch[ =]sm_(\d+)([af]?)(?![0-9a-z])", toolkit.arguments) if toolkit else None
        if match and int(match[1]) == sm:
            suffix, known = match[2], True
        elif elf.flags & 0x08 or _compat(elf).get(9) == 1:
            suffix, known = "a", True
    return (ArchSpec(sm // 10, sm % 10, suffix), known) if sm >= 10 else (None, False)


def _compat(elf: ElfFile) -> dict[int, int]:
    values: dict[int, int] = {}
    for section in elf.named(".nv.compat"):
        content = elf.content(section)
        offset = 0
        while content.holds(offset, _COMPAT.size):
            layout, attribute, value = content.unpack(_COMPAT, offset, ".nv.compat")
            offset += _COMPAT.size
            if layout == 4:
                offset += value
            else:
                values[attribute] = value
    return values


def _toolkit(elf: ElfFile) -> Toolkit | None:
    for section in elf.named(".note.nv.tkinfo"):
        content = elf.content(section)
        name_size, size, _ = content.unpack(_NOTE, 0, "tkinfo note")
        start = _NOTE.size + (name_size + 3) // 4 * 4
        body = content.part(start, size, "tkinfo note")
        _, *offsets = body.unpack(_TOOLKIT, 0, "tkinfo note")
        strings = body.take(_TOOLKIT.size, body.size - _TOOLKIT.size, "tkinfo strings")
        _, tool, version, _, arguments = (
            strings[at:].split(b"\0", 1)[0].decode("utf-8", "replace") for at in offsets
        )  # fmt: skip
        match = re.search(r"V(\d+\.\d+\.\d+)", version)
        return Toolkit(tool, match[1] if match else version, arguments.strip())
    return None


def _kernels(elf: ElfFile) -> tuple[Kernel, ...]:
    kernels = []
    for section in elf.sections:
        if section.type != SHT_SYMTAB or section.link >= len(elf.sections):
            continue
        names = elf.content(elf.sections[section.link])
        text = names.take(0, names.size, "symbol names")
        table = elf.content(section)
        rows = table.take(0, table.size // _SYMBOL.size * _SYMBOL.size, "symbols")
        for name, info, other, where, _, size in _SYMBOL.iter_unpack(rows):
            if info & 15 == _STT_FUNC and where and other & _STO_ENTRY:
                kernels.append(Kernel(text[name : text.find(b"\0", name)].decode("utf-8", "replace"), size))
    return tuple(kernels)
