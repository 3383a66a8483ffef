"""Looks into the images of one container: kernels, sizes, toolkit, registers, telling instructions.

Every cubin is read. PTX is read where it is what the driver would compile: decompressing it is most of the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.device import DamagedError, DeviceImage, payload, ptx_kernels, read_cubin
from sm121.inspector.facts import ABSENT, ImageFacts, UnitKernel
from sm121.inspector.loading import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.device import Buffer, Container, Kernel, Toolkit
    from sm121.target import Capability

LARGEST_SUM = 16 << 30
"""Bytes of all images of a file after decompression: a bound for what was made to waste time."""
FREE_SUM, LARGEST_RATIO = 1 << 30, 200
"""How many times their stored bytes a file's images may come to, beyond the bytes that are free.

Whole libraries come to 13 to 42 times, single images to 70 (vLLM 0.33.0).
"""
LARGEST_NAMES, FREE_NAMES = 1 << 30, 1 << 26
"""Characters in the names of a file's kernels, those of each image counted: at most, and what is free of the ratio."""


@dataclass(frozen=True, slots=True)
class UnitLook:
    """What a look into a container found."""

    images: tuple[ImageFacts, ...]
    kernels: tuple[UnitKernel, ...]


@dataclass(slots=True)
class Looker:
    """Looks into containers for one capability. With `deep` off, headers are all that is read."""

    capability: Capability
    deep: bool = True
    spent: int = field(default=0, init=False)
    stored: int = field(default=0, init=False)
    named: int = field(default=0, init=False)

    def __call__(self, buffer: Buffer, container: Container) -> UnitLook:
        images = container.images
        if not self.deep:
            return UnitLook(tuple(_facts(_Read(image)) for image in images), ())
        chosen = choose(images, self.capability)
        reads = [
            self._read(buffer, image, chosen=index == chosen)
            if image.kind == "cubin" or index == chosen
            else _Read(image)
            for index, image in enumerate(images)
        ]
        return UnitLook(tuple(_facts(read) for read in reads), _merge(reads))

    def _read(self, buffer: Buffer, image: DeviceImage, *, chosen: bool) -> _Read:
        read = _Read(image)
        self.spent += image.size
        self.stored += image.stored
        most = min(LARGEST_SUM, FREE_SUM + LARGEST_RATIO * self.stored)
        if self.spent > most:
            read.damage = f"with the images before it, {self.stored} bytes claim to be more than {most}"
            return read
        try:
            data = payload(buffer, image)
            if image.kind == "ptx":
                self._keep(read, dict.fromkeys(ptx_kernels(data), 0))
                return read
            cubin = read_cubin(data, bodies=chosen)
            read.toolkit = cubin.toolkit
            read.damage = " ".join(cubin.damage)
            self._keep(read, {kernel.name: kernel.size for kernel in cubin.kernels})
            if chosen and read.kernels is not None:
                read.details = {kernel.name: kernel for kernel in cubin.kernels}
        except DamagedError as error:
            read.damage = " ".join(error.problems)
        return read

    def _keep(self, read: _Read, kernels: dict[str, int]) -> None:
        """Keep the kernels of an image if their names are not out of proportion: names may overlap in their table."""
        self.named += sum(map(len, kernels))
        most = min(LARGEST_NAMES, FREE_NAMES + LARGEST_RATIO * self.stored)
        if self.named <= most:
            read.kernels = kernels
        else:
            said = f"with the images before it, the names of its kernels come to more than {most} characters"
            read.damage = f"{read.damage} {said}".strip()


@dataclass(slots=True)
class _Read:
    """One image while it is read.

    `kernels` maps names to bytes of machine code, None until the image was looked into; `details` has the kernels
    of the image that loads.
    """

    image: DeviceImage
    kernels: dict[str, int] | None = None
    details: dict[str, Kernel] = field(default_factory=dict)
    toolkit: Toolkit | None = None
    damage: str = ""


def _facts(read: _Read) -> ImageFacts:
    image = read.image
    return ImageFacts(
        image.kind, image.arch, image.stored, image.size, image.compression, image.version, read.toolkit,
        None if read.kernels is None else len(read.kernels), image.suffix_known, read.damage,
    )  # fmt: skip


def _merge(reads: Sequence[_Read]) -> tuple[UnitKernel, ...]:
    """The kernels of all images, in order of first appearance."""
    details = {name: kernel for read in reads for name, kernel in read.details.items()}
    names = dict.fromkeys(name for read in reads for name in read.kernels or ())
    return tuple(
        _kernel(name, tuple((read.kernels or {}).get(name, ABSENT) for read in reads), details.get(name))
        for name in names
    )


def _kernel(name: str, sizes: tuple[int, ...], detail: Kernel | None) -> UnitKernel:
    if detail is None:
        return UnitKernel(name, sizes)
    code = detail.code
    if code is None:
        return UnitKernel(name, sizes, detail.registers, inert=detail.inert)
    return UnitKernel(name, sizes, detail.registers, code.fp4, code.fp8, code.traps, detail.inert)
