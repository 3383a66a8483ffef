"""The machine code of one object: what each kernel costs and how it loads. Bytes in, records out."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sm121.device import payload, ptx_kernels, read_cubin, read_device_code
from sm121.device.elf import ElfFile
from sm121.device.spills import local_memory
from sm121.errors import DamagedError
from sm121.inspector.differences import stable_name
from sm121.inspector.loading import choose
from sm121.target import GB10, LoadsAs, loads_as

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from sm121.device import Buffer, DeviceImage
    from sm121.target import Capability

_MARKS_SPILLS = 13
"""The first CUDA release whose ptxas marks spills in the cubin (`device/spills.py`)."""


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel of one image. Sizes are bytes; of PTX only the name is known, and the numbers are 0.

    `code` is the sha256 of the machine code (of PTX: of the whole text), `shared` static shared memory,
    `spill_stores` and `spill_loads` what spilled registers move per thread; `spills_known` is False if they are only
    an upper bound. `fp4` and `fp8` count tensor instructions, None where the encoding of the target is not known.
    """

    name: str
    size: int = 0
    registers: int | None = None
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    spills_known: bool = True
    mma: int | None = None
    fp4: int | None = None
    fp8: int | None = None
    code: str = ""

    @property
    def spills(self) -> int:
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True, slots=True)
class ImageCode:
    """One device image of an object: its target (`sm_120f`), how it loads, its size when decompressed, its kernels."""

    target: str
    loads_as: LoadsAs
    size: int
    kernels: tuple[KernelCode, ...]


@dataclass(frozen=True, slots=True)
class UnitCode:
    """All device code of an object; `chosen` is the image that the chip takes, None if it takes none."""

    images: tuple[ImageCode, ...] = ()
    chosen: int | None = None
    damage: tuple[str, ...] = ()
    sha256: str = ""
    """Of the object."""

    @property
    def image(self) -> ImageCode | None:
        return None if self.chosen is None else self.images[self.chosen]

    @property
    def loads_as(self) -> LoadsAs:
        return self.image.loads_as if self.image else LoadsAs.NO

    @property
    def kernels(self) -> Mapping[str, KernelCode]:
        """The kernels of the image that the chip takes; where it takes none, of the first."""
        image = self.image or next(iter(self.images), None)
        return {kernel.name: kernel for kernel in image.kernels} if image else {}

    @property
    def data(self) -> dict[str, Any]:
        """Plain data; `from_data` reads it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError or TypeError for anything but `data`."""
        images = tuple(
            ImageCode(
                one["target"], LoadsAs(one["loads_as"]), one["size"],
                tuple(KernelCode(**kernel) for kernel in one["kernels"]),
            )
            for one in data["images"]
        )  # fmt: skip
        return cls(images, data["chosen"], tuple(data["damage"]), data["sha256"])


def read_unit(data: bytes, capability: Capability = GB10) -> UnitCode:
    """Read an object file. An object of host code alone has no images; what cannot be read is named in `damage`."""
    found = read_device_code(data)
    images, damage = [], list(found.damage)
    for image in found.images:
        try:
            images.append(_image(data, image, capability))
        except DamagedError as error:
            damage += error.problems
            images.append(ImageCode(image.target, LoadsAs.NO, image.size, ()))
    return UnitCode(
        tuple(images), choose(found.images, capability), tuple(damage), hashlib.sha256(data).hexdigest()
    )


def cubin_of(data: bytes, capability: Capability = GB10) -> bytes | None:
    """The cubin of an object that the chip takes, None if it takes none or PTX."""
    images = read_device_code(data).images
    chosen = choose(images, capability)
    if chosen is None or images[chosen].kind != "cubin":
        return None
    return bytes(payload(data, images[chosen]))


def code_digests(
    data: Buffer, wanted: AbstractSet[str], capability: Capability = GB10
) -> dict[str, tuple[str, str]]:
    """Kernel -> target of the image that the chip takes, and sha256 of its code there, over all units of a library.

    Of PTX, the digest is that of the unit's whole text. Raises DamagedError for what holds no device code.
    """
    found: dict[str, tuple[str, str]] = {}
    for container in read_device_code(data).containers:
        chosen = choose(container.images, capability)
        if chosen is None:
            continue
        image = container.images[chosen]
        content = payload(data, image)
        if image.kind == "ptx":
            text = hashlib.sha256(content).hexdigest()
            found |= {name: (image.target, text) for name in ptx_kernels(content) if name in wanted}
        elif any(kernel.name in wanted for kernel in read_cubin(content, bodies=False).kernels):
            found |= {name: (image.target, code) for name, code in _bodies(content).items() if name in wanted}
    return found


def _image(data: bytes, image: DeviceImage, capability: Capability) -> ImageCode:
    loads = loads_as(image.kind, image.arch, capability)
    content = payload(data, image)
    if image.kind == "ptx":
        text = hashlib.sha256(content).hexdigest()
        kernels = tuple(KernelCode(stable_name(name), code=text) for name in sorted(ptx_kernels(content)))
    elif image.kind == "cubin":
        kernels = _kernels(content)
    else:
        kernels = ()
    return ImageCode(image.target, loads, image.size, kernels)


def _kernels(content: Buffer) -> tuple[KernelCode, ...]:
    cubin = read_cubin(content)
    marks = cubin.toolkit is not None and int(cubin.toolkit.version.partition(".")[0]) >= _MARKS_SPILLS
    local = local_memory(content, marks_spills=marks)
    code = _bodies(content)
    found = []
    for kernel in cubin.kernels:
        one = KernelCode(
            stable_name(kernel.name), kernel.size, kernel.registers, kernel.shared, code=code.get(kernel.name, "")
        )
        if kernel.code is not None:
            one = replace(one, mma=kernel.code.mma, fp4=kernel.code.fp4, fp8=kernel.code.fp8)
        if memory := local.get(kernel.name):
            one = replace(
                one, stack=memory.stack, spill_stores=memory.stores, spill_loads=memory.loads,
                spills_known=memory.marked,
            )  # fmt: skip
        found.append(one)
    return tuple(sorted(found, key=lambda kernel: kernel.name))


def _bodies(content: Buffer) -> dict[str, str]:
    """Kernel -> sha256 of its section of machine code."""
    elf = ElfFile.parse(content)
    return {
        section.name.removeprefix(".text."): hashlib.sha256(
            window.take(0, window.size, "machine code")
        ).hexdigest()
        for section in elf.sections
        if section.name.startswith(".text.")
        for window in [elf.content(section)]
    }
