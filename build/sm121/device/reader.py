"""Reads all device code of a file, whatever kind of file it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.device import archive, fatbin
from sm121.device.cubin import read_cubin, read_target
from sm121.device.elf import EM_CUDA, ET_REL, MAGIC, SHT_NOBITS, ElfFile, other_layout
from sm121.device.fatbin import KEPT_PAYLOAD, Container, DeviceCode, DeviceImage, UnknownEntry, Walk
from sm121.device.payload import payload
from sm121.device.window import Remarks, Window
from sm121.device.wrappers import SECTION as WRAPPERS
from sm121.device.wrappers import Wrapper, unnamed_wrappers, wrappers
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.device.window import Buffer

FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_STUB_LIMIT = 1 << 16
_OTHER_LAYOUT = "a 32-bit or big-endian ELF file, whose sections are not looked into."


def read_device_code(buffer: Buffer) -> DeviceCode:
    """Read a shared library, program, object, archive, cubin or fatbin from its first byte on.

    DamagedError if it is none of these. What is wrong inside is named in `DeviceCode.damage`, and the rest is read.
    """
    window = Window.over(buffer)
    head = window.head(8)
    walk = Walk()
    if head[:4] == fatbin.MAGIC_BYTES:
        walk.region(window, section="")
        return walk.result("fatbin", "")
    if head in {archive.MAGIC, archive.THIN_MAGIC}:
        return walk.result("archive", _archive(window, walk))
    if machine := other_layout(window):
        walk.notices.add(_OTHER_LAYOUT)
        return walk.result("elf", machine)
    if head[:4] == MAGIC:
        elf = ElfFile.parse(window)
        _elf(elf, walk)
        return walk.result("cubin" if elf.machine_number == EM_CUDA else "elf", elf.machine)
    raise DamagedError(
        f"neither an ELF file nor an archive, cubin or fatbin: wanted the first bytes of one, found {head!r}."
    )


def _archive(window: Window, walk: Walk) -> str:
    """Add the containers of every object; return the machines, of which there should be one."""
    machines: set[str] = set()
    try:
        for member in archive.members(window):
            if member.window.head(4) == fatbin.MAGIC_BYTES:
                walk.region(member.window, section="", member=member.name)
            if other_layout(member.window):
                walk.notices.add(f"{member.name}: {_OTHER_LAYOUT}")
                continue
            if member.window.head(4) != MAGIC:
                continue
            try:
                elf = ElfFile.parse(member.window)
                _elf(elf, walk, member.name)
            except DamagedError as error:
                walk.damage.add(*(f"{member.name}: {problem}" for problem in error.problems))
            else:
                machines.add(elf.machine)
    except DamagedError as error:
        walk.damage.add(*error.problems)
    return " ".join(sorted(machines))


def _elf(elf: ElfFile, walk: Walk, member: str = "") -> None:
    """Add the containers of one ELF file, and what is wrong with the file around them."""
    damage, notices = Remarks(elf.damage), Remarks()
    if elf.machine_number == EM_CUDA:
        walk.add(_bare_cubin(elf, len(walk.containers), member))
    else:
        try:
            _host_elf(elf, walk, damage, notices, member)
        except DamagedError as error:
            damage.add(*error.problems)
    prefix = f"{member}: " if member else ""
    walk.damage.add(*(prefix + sentence for sentence in damage.all()))
    walk.notices.add(*(prefix + sentence for sentence in notices.all()))


def _host_elf(elf: ElfFile, walk: Walk, damage: Remarks, notices: Remarks, member: str) -> None:
    first = len(walk.containers)
    found = wrappers(elf, damage)
    for section in elf.named(*FATBIN_SECTIONS):
        if section.type == SHT_NOBITS and section.size:
            damage.add(f"section {section.name} holds nothing: its {section.size} bytes were taken out.")
        elif elf.window.holds(section.offset, section.size):
            walk.region(elf.content(section), section=section.name, member=member)
    containers = walk.containers[first:]
    if found or containers or elf.type_number == ET_REL:
        damage.add(*_mismatch(elf, containers, found))
    else:
        _by_wrappers(elf, walk, damage)
        if len(walk.containers) == first and not elf.named_sections:
            notices.add(
                "no section has a name, and no fatbin wrapper was found: device code cannot be ruled out."
            )


def _mismatch(elf: ElfFile, containers: Sequence[Container], found: Sequence[Wrapper]) -> Iterator[str]:
    """Compare the containers with the wrappers that must point to them.

    A linker may drop the wrapper of a device-link stub, since nothing refers to it; libcusparse 12.6.3 is such a file.
    It drops the whole section if nothing else is in it: libcufft 12.0.0.
    """
    if not found:
        containers = [container for container in containers if not _is_stub(elf, container)]
    starts = {container.offset - elf.window.base: container for container in containers}
    targets = {wrapper.container for wrapper in found}
    followed = bool(found) and None not in targets
    if len(found) > len(containers) or (len(found) < len(containers) and not followed):
        yield (
            f"{WRAPPERS}: wanted one wrapper for each container, "
            f"found {len(found)} wrappers and {len(containers)} containers."
        )
    for wrapper in found:
        if wrapper.container is not None and wrapper.container not in starts:
            yield (
                f"{WRAPPERS}: wrapper at {elf.window.base + wrapper.offset:#x} points to "
                f"{elf.window.base + wrapper.container:#x}, where no container was read."
            )
    for start, container in starts.items():
        if followed and start not in targets and not _is_stub(elf, container):
            yield f"container at {container.offset:#x} has no wrapper in {WRAPPERS}: the CUDA runtime never sees it."


def _by_wrappers(elf: ElfFile, walk: Walk, damage: Remarks) -> None:
    """Read the containers that wrappers in the data segments point to: the sections have no names, or other names."""
    for wrapper in unnamed_wrappers(elf):
        if wrapper.container is None:
            at = elf.window.base + wrapper.offset
            damage.add(f"fatbin wrapper at {at:#x} is in no section {WRAPPERS}, and its pointer leads nowhere.")
        else:
            walk.container(elf.window, wrapper.container, section="")


def _bare_cubin(elf: ElfFile, index: int, member: str) -> Container:
    base, size = elf.window.base, elf.window.size
    try:
        arch, known = read_target(elf)
    except DamagedError as error:
        unknown = UnknownEntry(" ".join(error.problems).removesuffix("."), 0, 0, base, size)
        return Container("", index, base, size, (), (unknown,), member)
    image = DeviceImage(
        kind="cubin", arch=arch, section="", container=index, index=0, offset=base, header_offset=base, stored=size,
        size=size, compression="", version=(1, elf.abi_version), flags=0, suffix_known=known,
    )  # fmt: skip
    return Container("", index, base, size, (image,), (), member)


def _is_stub(elf: ElfFile, container: Container) -> bool:
    """Whether a container is what nvlink leaves of a device link without device code: cubins without kernels."""
    for image in container.images:
        if image.kind != "cubin" or image.stored > KEPT_PAYLOAD:
            return False
        try:
            if read_cubin(payload(elf.window.buffer, image, limit=_STUB_LIMIT)).kernels:
                return False
        except DamagedError:
            return False
    return not container.unknown
