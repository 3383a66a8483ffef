"""Reads all device code of a file, whatever kind of file it is."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sm121.device import archive, fatbin
from sm121.device.cubin import read_cubin
from sm121.device.elf import EM_CUDA, MAGIC, SHT_NOBITS, ElfFile
from sm121.device.fatbin import Container, DeviceCode, DeviceImage
from sm121.device.window import Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from sm121.device.window import Buffer

FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
WRAPPER_SECTION = ".nvFatBinSegment"
WRAPPER = struct.Struct("<IIQQ")


def read_device_code(buffer: Buffer) -> DeviceCode:
    """Read a shared library, object, archive, cubin or fatbin from its first byte on.

    DamagedError if it is none of these. Anything wrong inside is named in `DeviceCode.damage`, and the rest is read.
    """
    window = Window.over(buffer)
    head = window.head(8)
    if head[:4] == MAGIC:
        return _elf(window)
    if head[:4] == fatbin.MAGIC_BYTES:
        containers, damage = fatbin.walk(window, section="", first=0)
        return DeviceCode("fatbin", "", tuple(containers), tuple(damage))
    if head in {archive.MAGIC, archive.THIN_MAGIC}:
        return _archive(window)
    raise DamagedError(
        f"neither an ELF file nor an archive, cubin or fatbin: wanted one of their first bytes, found {head!r}."
    )


def _elf(window: Window, *, first: int = 0, member: str = "") -> DeviceCode:
    elf = ElfFile.parse(window)
    if elf.machine_number == EM_CUDA:
        return _cubin(window, first, member)
    containers: list[Container] = []
    damage = list(elf.damage)
    found = elf.named(*FATBIN_SECTIONS)
    wrappers = 0
    for section in found:
        if section.type == SHT_NOBITS:
            continue
        try:
            content = elf.content(section)
        except DamagedError:
            continue
        read, wrong = fatbin.walk(content, section=section.name, first=first + len(containers), member=member)
        containers += read
        damage += wrong
    for section in elf.named(WRAPPER_SECTION):
        wrappers += section.size // WRAPPER.size
    if wrappers != len(containers):
        damage.append(
            f"{WRAPPER_SECTION}: wanted one wrapper per container, found {wrappers} and {len(containers)}."
        )
    return DeviceCode(
        "elf", elf.machine, tuple(containers), tuple(damage), (), tuple(section.name for section in found)
    )  # fmt: skip


def _cubin(window: Window, first: int, member: str) -> DeviceCode:
    cubin = read_cubin(window)
    if cubin.arch is None:
        raise DamagedError("cubin of unknown layout: its header names no target.")
    image = DeviceImage(
        kind="cubin", arch=cubin.arch, section="", container=first, index=0, offset=window.base, header_offset=window.base,
        stored=window.size, size=window.size, compression="", version=(1, 0), flags=0, suffix_known=cubin.suffix_known,
    )  # fmt: skip
    container = Container("", first, window.base, window.size, (image,), (), member)
    return DeviceCode("cubin", "cuda", (container,), cubin.damage)


def _archive(window: Window) -> DeviceCode:
    containers: list[Container] = []
    damage: list[str] = []
    sections: list[str] = []
    machines: set[str] = set()
    try:
        for member in archive.members(window):
            if member.window.head(4) != MAGIC:
                continue
            try:
                code = _elf(member.window, first=len(containers), member=member.name)
            except DamagedError as error:
                damage += [f"{member.name}: {problem}" for problem in error.problems]
                continue
            containers += code.containers
            damage += [f"{member.name}: {problem}" for problem in code.damage]
            sections += code.sections
            machines.add(code.machine)
    except DamagedError as error:
        damage += error.problems
    return DeviceCode(
        "archive", " ".join(sorted(machines)), tuple(containers), tuple(damage), (), tuple(dict.fromkeys(sections))
    )  # fmt: skip
