"""Cubins: ELF files of machine 190. Their target, what made them, and their kernels.

Two layouts are in use (measured on CUDA 12.8 to 13.5): the old one (OS ABI 0x33) of CUDA 12 for targets below sm_100,
and the new one (OS ABI 0x41) of CUDA 13, and of CUDA 12 from sm_100 on.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.elf import EM_CUDA, SHT_SYMTAB, SYMBOL, ElfFile
from sm121.device.sass import Code, count
from sm121.device.window import Remarks, Window
from sm121.errors import DamagedError
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device.elf import Section
    from sm121.device.window import Buffer

_NOTE = struct.Struct("<III")
_TOOLKIT = struct.Struct("<6I")
_RECORD = struct.Struct("<BBH")
_REGISTERS = struct.Struct("<II")
_OLD_ABI, _NEW_ABI = 0x33, 0x41
_STT_FUNC, _STO_ENTRY = 2, 0x10
_TYPE_AT, _IS_FUNCTION = 4, bytes(byte & 15 == _STT_FUNC for byte in range(256))
_SYSTEM_CALLS = frozenset({"vprintf", "__assertfail", "malloc", "free"})  # the driver's; they write no result
_ATTRIBUTE_REGISTERS, _ATTRIBUTE_ONE_CHIP = 0x2F, 9
# More than any compiler writes; bounds what a hostile file costs.
_MOST_KERNELS, _MOST_FUNCTIONS, _MOST_RECORDS, _LONGEST_TEXT = 1 << 18, 1 << 20, 1 << 20, 1 << 14
_SIZED = 4  # the record format whose value is the length of what follows


@dataclass(frozen=True, slots=True)
class Kernel:
    """An entry function.

    `size` is its machine code in bytes, `registers` the registers of a thread, `shared` its static shared memory in
    bytes with what the system reserves of it. `code` counts telling instructions, with those of functions in the
    same section, which only this kernel calls; None if the opcodes of the target are not known here.
    """

    name: str
    size: int
    registers: int | None = None
    shared: int = 0
    code: Code | None = None
    calls_others: bool = False

    @property
    def inert(self) -> bool | None:
        """Whether it writes nothing that outlives it; None if that is not known.

        True for a stub that only prints or traps (`code.calls`, `code.traps`), and for a kernel whose body the
        compiler found empty, which can be right: CUB has such a kernel, and templates have cases without use.
        """
        if self.code is None or (self.calls_others and not self.code.writes):
            return None
        return not self.code.writes


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What made a cubin: `ptxas` or `nvlink`, `13.0.88`, and the arguments it was given (`-arch sm_120f -m 64`)."""

    tool: str
    version: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Cubin:
    """What a cubin says of itself.

    `suffix_known` is False if it leaves open whether the target is plain or the family. `functions` counts device
    functions that are no kernels. `toolkit` is None in the old layout; `e_version` then tells the release (0x80 is
    12.8, 0x81 is 12.9). `damage` names what could not be read.
    """

    arch: ArchSpec
    suffix_known: bool
    kernels: tuple[Kernel, ...]
    functions: int
    toolkit: Toolkit | None
    e_version: int
    damage: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The symbol of an entry function: its number, and the number of its section."""

    symbol: int
    name: str
    section: int
    size: int


def read_cubin(data: Buffer, *, bodies: bool = True) -> Cubin:
    """Read a cubin. DamagedError if it is none, or of a layout that names no target.

    With `bodies` off, kernels have names and sizes only: their registers and code are None, their shared memory 0.
    """
    elf = ElfFile.parse(data)
    damage = Remarks(elf.damage)
    toolkit = None
    kernels: tuple[Kernel, ...] = ()
    functions = 0
    try:
        toolkit = _toolkit(elf)
    except DamagedError as error:
        damage.add(*error.problems)
    arch, known = _target(elf, toolkit)
    try:
        kernels, functions = _kernels(elf, arch, damage, bodies=bodies)
    except DamagedError as error:
        damage.add(*error.problems)
    return Cubin(arch, known, kernels, functions, toolkit, elf.version, damage.all())


def read_target(elf: ElfFile) -> tuple[ArchSpec, bool]:
    """The target of a cubin, and whether its suffix is certain.

    In order of trust: the arguments of the tool that made it; then the marks for "this chip only". The family stands
    in no header field.
    """
    try:
        toolkit = _toolkit(elf)
    except DamagedError:
        toolkit = None  # the same damage is reported by whoever reads that section for its own sake
    return _target(elf, toolkit)


def _target(elf: ElfFile, toolkit: Toolkit | None) -> tuple[ArchSpec, bool]:
    if elf.machine_number != EM_CUDA:
        raise DamagedError(f"not a cubin: wanted ELF machine {EM_CUDA}, found {elf.machine_number}.")
    old = elf.os_abi == _OLD_ABI
    sm = elf.flags & 0xFF if old else elf.flags >> 8 & 0xFF
    if elf.os_abi not in {_OLD_ABI, _NEW_ABI} or sm < 10:
        raise DamagedError(
            f"cubin of unknown layout: wanted OS ABI {_OLD_ABI:#x} or {_NEW_ABI:#x} and a target in the flags, "
            f"found {elf.os_abi:#x} and flags {elf.flags:#010x}."
        )
    if old:
        return ArchSpec(sm // 10, sm % 10, "a" if elf.flags & 0x800 else ""), True
    suffix, known = _suffix(elf, sm, toolkit)
    return ArchSpec(sm // 10, sm % 10, suffix), known


def _suffix(elf: ElfFile, sm: int, toolkit: Toolkit | None) -> tuple[str, bool]:
    try:
        named = re.search(r"-arch[= ]sm_(\d+)([af]?)\b", toolkit.arguments) if toolkit else None
        if named and int(named[1]) == sm:
            return named[2], True
        if elf.flags & 0x08 or any(
            attribute == _ATTRIBUTE_ONE_CHIP and value == 1
            for section in elf.named(".nv.compat")[:1]
            for attribute, value, _ in records(elf.content(section))
        ):
            return "a", True
    except DamagedError:
        pass  # the same damage is reported by whoever reads that section for its own sake
    return "", False


def records(content: Window) -> Iterator[tuple[int, int, Window]]:
    """The records of `.nv.info` and `.nv.compat`: attribute, value, and the bytes that follow a sized one."""
    offset = 0
    for _ in range(_MOST_RECORDS):
        if not content.holds(offset, _RECORD.size):
            return
        layout, attribute, value = content.unpack(_RECORD, offset, "attribute")
        offset += _RECORD.size
        extra = content.part(offset, value if layout == _SIZED else 0, "attribute value")
        offset += extra.size
        yield attribute, value, extra
    raise DamagedError(f"wanted at most {_MOST_RECORDS} records in a section, found more.")


def _toolkit(elf: ElfFile) -> Toolkit | None:
    for section in elf.named(".note.nv.tkinfo"):
        content = elf.content(section)
        owner, size, _ = content.unpack(_NOTE, 0, "toolkit note")
        body = content.part(_NOTE.size + owner + -owner % 4, size, "toolkit note")
        _, *offsets = body.unpack(_TOOLKIT, 0, "toolkit note")
        _, tool, version, _, arguments = (_text(body, _TOOLKIT.size + at) for at in offsets)
        release = re.search(r"V(\d+\.\d+\.\d+)", version)
        return Toolkit(tool, release[1] if release else version, arguments)
    return None


def _text(content: Window, start: int) -> str:
    """The NUL-ended text at `start`, cut where it is longer than what any tool writes."""
    room = max(0, min(content.size - start, _LONGEST_TEXT))
    raw = content.take(start, room, "toolkit strings") if room else b""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace").strip()


def _kernels(elf: ElfFile, arch: ArchSpec, damage: Remarks, *, bodies: bool) -> tuple[tuple[Kernel, ...], int]:
    entries, functions = _functions(elf, damage)
    if not bodies:
        return tuple(Kernel(entry.name, entry.size) for entry in entries), functions.total() - functions[0]
    shared = {section.name: section.size for section in elf.sections if section.name.startswith(".nv.shared.")}
    registers = _registers(elf)
    code = {
        where: _code(elf, elf.sections[where], arch, damage) for where in {entry.section for entry in entries}
    }
    separate = bool(functions.keys() - code.keys())
    return tuple(
        Kernel(
            name=entry.name, size=entry.size, registers=registers.get(entry.symbol),
            shared=shared.get(f".nv.shared.{entry.name}", 0), code=(body := code[entry.section]),
            calls_others=separate and body is not None and body.calls > 0,
        )
        for entry in entries
    ), functions.total() - functions[0]  # fmt: skip


def _functions(elf: ElfFile, damage: Remarks) -> tuple[list[_Entry], Counter[int]]:
    """The entry functions, and how many other functions each section holds; section 0 is another file."""
    entries: list[_Entry] = []
    others: Counter[int] = Counter()
    for table in elf.of_type(SHT_SYMTAB)[:1]:
        names = elf.strings(elf.linked(table))
        content = elf.content(table)
        rows = content.take(0, content.size // SYMBOL.size * SYMBOL.size, "symbols")
        # One in ten symbols is a function: they are found in the column of types, before any row is unpacked.
        types = rows[_TYPE_AT :: SYMBOL.size].translate(_IS_FUNCTION)
        index, seen = types.find(1), 0
        while index >= 0:
            if (seen := seen + 1) > _MOST_FUNCTIONS:
                raise DamagedError(f"symbols: wanted at most {_MOST_FUNCTIONS} functions, found more.")
            name_at, _, other, where, _, size = SYMBOL.unpack_from(rows, index * SYMBOL.size)
            if where and other & _STO_ENTRY:
                name = names.at(name_at)
                if name is None or where >= len(elf.sections):
                    damage.add(f"function symbol {index}: its name or its section does not exist.")
                else:
                    entries.append(_Entry(index, name, where, size))
                if len(entries) > _MOST_KERNELS:
                    raise DamagedError(f"symbols: wanted at most {_MOST_KERNELS} kernels, found more.")
            elif where or names.at(name_at) not in _SYSTEM_CALLS:
                others[where] += 1
            index = types.find(1, index + 1)
    return entries, others


def _code(elf: ElfFile, section: Section, arch: ArchSpec, damage: Remarks) -> Code | None:
    try:
        content = elf.content(section)
    except DamagedError as error:
        damage.add(*error.problems)
        return None
    return count(content.take(0, content.size, "machine code"), arch)


def _registers(elf: ElfFile) -> dict[int, int]:
    """Symbol index -> registers of a thread, from the records of `.nv.info`."""
    found: dict[int, int] = {}
    for section in elf.named(".nv.info")[:1]:
        for attribute, _, value in records(elf.content(section)):
            if attribute == _ATTRIBUTE_REGISTERS and value.size == _REGISTERS.size:
                symbol, registers = value.unpack(_REGISTERS, 0, "register count")
                found[symbol] = registers
                if len(found) > _MOST_KERNELS:
                    raise DamagedError(f".nv.info: wanted at most {_MOST_KERNELS} register counts, found more.")
    return found
