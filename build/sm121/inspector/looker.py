"""Looks into the images of one container: kernels, sizes, toolkit, tensor instructions.

Every cubin is read. PTX is read where it is what the driver would compile: decompressing it is most of the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.device import DamagedError, DeviceImage, ElfFile, payload, ptx_kernels, read_cubin
from sm121.inspector.facts import ABSENT, ImageFacts, UnitKernel
from sm121.inspector.loading import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.device import Buffer, Container, Kernel, Toolkit
    from sm121.inspector.rules import Bodies, Instruction
    from sm121.target import Capability

LARGEST_IMAGE = 256 << 20
"""Bytes of one image after decompression; ten times the largest PTX of FlashAttention 2."""
LARGEST_SUM = 16 << 30
"""Bytes of all images of a file after decompression: a bound for what was made to waste time."""

_WORD = 16


@dataclass(frozen=True, slots=True)
class UnitLook:
    """What a look into a container found."""

    images: tuple[ImageFacts, ...]
    kernels: tuple[UnitKernel, ...]


@dataclass(slots=True)
class Looker:
    """Looks into containers for one capability. With `deep` off, headers are all that is read."""

    capability: Capability
    bodies: Bodies
    deep: bool = True
    spent: int = field(default=0, init=False)

    def __call__(self, buffer: Buffer, container: Container) -> UnitLook:
        images = container.images
        if not self.deep:
            return UnitLook(tuple(_facts(image) for image in images), ())
        chosen = choose(images, self.capability)
        reads = [
            self._read(buffer, image, chosen=index == chosen)
            if image.kind == "cubin" or index == chosen
            else _Read(image)
            for index, image in enumerate(images)
        ]
        return UnitLook(tuple(read.facts() for read in reads), _merge(reads))

    def _read(self, buffer: Buffer, image: DeviceImage, *, chosen: bool) -> _Read:
        read = _Read(image)
        self.spent += image.size
        if self.spent > LARGEST_SUM:
            read.damage = f"the images before it came to more than {LARGEST_SUM} bytes"
            return read
        try:
            data = payload(buffer, image, limit=LARGEST_IMAGE)
            if image.kind == "ptx":
                read.kernels = dict.fromkeys(ptx_kernels(data), 0)
                return read
            cubin = read_cubin(data)
            read.kernels = {kernel.name: kernel.size for kernel in cubin.kernels}
            read.toolkit = cubin.toolkit
            read.damage = " ".join(cubin.damage)
            if chosen:
                small = any(kernel.size <= self.bodies.stub_bytes for kernel in cubin.kernels)
                read.registers = {
                    kernel.name: kernel.registers for kernel in cubin.kernels if kernel.registers is not None
                }
                read.texts = tuple(text.decode() for text in self.bodies.stub_texts if small and text in data)
                read.instructions = _instructions(data, cubin.kernels, self.bodies.instructions)
        except DamagedError as error:
            read.damage = " ".join(error.problems)
        return read


@dataclass(slots=True)
class _Read:
    """One image while it is read. `kernels` maps names to machine code bytes, None until it was looked into."""

    image: DeviceImage
    kernels: dict[str, int] | None = None
    registers: dict[str, int] = field(default_factory=dict)
    instructions: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    toolkit: Toolkit | None = None
    texts: tuple[str, ...] = ()
    damage: str = ""

    def facts(self) -> ImageFacts:
        return _facts(
            self.image, toolkit=self.toolkit, kernels=None if self.kernels is None else len(self.kernels),
            texts=self.texts, damage=self.damage,
        )  # fmt: skip


def _facts(
    image: DeviceImage,
    *,
    toolkit: Toolkit | None = None,
    kernels: int | None = None,
    texts: tuple[str, ...] = (),
    damage: str = "",
) -> ImageFacts:
    return ImageFacts(
        image.kind, image.arch, image.stored, image.size, image.compression, image.version, toolkit, kernels,
        image.suffix_known, texts, damage,
    )  # fmt: skip


def _merge(reads: Sequence[_Read]) -> tuple[UnitKernel, ...]:
    names = dict.fromkeys(name for read in reads for name in read.kernels or ())
    return tuple(
        UnitKernel(
            name,
            tuple((read.kernels or {}).get(name, ABSENT) for read in reads),
            next((read.registers[name] for read in reads if name in read.registers), None),
            next((read.instructions[name] for read in reads if name in read.instructions), ()),
        )
        for name in names
    )  # fmt: skip


def _instructions(
    data: bytes, kernels: Sequence[Kernel], wanted: Sequence[Instruction]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """How many instructions of each kind the kernels hold; kernels without any are left out."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    code = {
        section.name: section for section in ElfFile.parse(data).sections if section.name.startswith(".text.")
    }
    for kernel in kernels:
        section = code.get(f".text.{kernel.name}")
        if section is None:
            continue
        end = section.offset + section.size
        low, high = data[section.offset : end : _WORD], data[section.offset + 1 : end : _WORD]
        counts = tuple(
            (kind.name, count)
            for kind in wanted
            if (count := sum(_count(low, high, opcode) for opcode in kind.opcodes))
        )
        if counts:
            found[kernel.name] = counts
    return found


def _count(low: bytes, high: bytes, opcode: int) -> int:
    """How many words have this opcode in their low 12 bits; `low` and `high` are their first and second bytes."""
    wanted, rest = opcode & 0xFF, opcode >> 8
    at, count = low.find(wanted), 0
    while at >= 0:
        count += (high[at] & 0x0F) == rest
        at = low.find(wanted, at + 1)
    return count
