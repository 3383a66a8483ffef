"""What was read, without judgement: libraries, their translation units, images and kernels.

A *unit* is one container: what nvcc made of one translation unit. Sizes and offsets are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sm121.artifact import Distribution
    from sm121.device import HostLibrary, Toolkit
    from sm121.findings import Finding
    from sm121.inspector.container import Container
    from sm121.target import Kind
    from sm121.values import ArchSpec

ABSENT = -1
"""In `UnitKernel.sizes`: the image does not hold this kernel."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """One cubin, PTX or LTO-IR.

    `stored` is its size in the file, `size` after decompression; `isa` the PTX ISA or the cubin ABI. `kernels` is
    None where the image was not looked into.
    """

    kind: Kind
    arch: ArchSpec
    stored: int
    size: int
    compression: str = ""
    isa: tuple[int, int] = (0, 0)
    toolkit: Toolkit | None = None
    kernels: int | None = None
    suffix_known: bool = True
    damage: str = ""

    @property
    def target(self) -> str:
        """`sm_120f`, `compute_80`, `lto_120`."""
        prefix = {"cubin": "sm", "ptx": "compute", "lto": "lto"}[self.kind]
        return f"{prefix}_{self.arch.number}{self.arch.suffix}"


class UnitKernel(NamedTuple):
    """A kernel of a unit: a tuple, because thousands of them travel between processes.

    `sizes` has one number per image: machine code in bytes, 0 for PTX, ABSENT if it is not there. The rest is of the
    image that loads: registers of a thread, FP4 and FP8 tensor instructions, traps, and whether it writes nothing;
    None if that is not known.
    """

    name: str
    sizes: tuple[int, ...]
    registers: int | None = None
    fp4: int | None = None
    fp8: int | None = None
    traps: int | None = None
    inert: bool | None = None


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """One container of a library; `member` is the object in an archive, or the file in a collection of cubins."""

    section: str
    index: int
    images: tuple[ImageFacts, ...]
    kernels: tuple[UnitKernel, ...] = ()
    offset: int = 0
    size: int = 0
    member: str = ""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """One file that can hold device code, or a collection of bare cubins.

    `format` is `elf`, `cubin`, `fatbin`, `archive`, `cubins`, or "" if it is none of these, and then `damage`
    says why. `looked_into` is False if kernels were not read at all.
    """

    path: str
    size: int
    format: str
    machine: str
    units: tuple[UnitFacts, ...] = ()
    damage: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    host: HostLibrary | None = None
    sha256: str = ""
    looked_into: bool = True
    files: int = 1
    unread: str = ""
    """Why it could not be looked at, for reasons that say nothing about the file."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def host_only(self) -> bool:
        """Proven to hold no device code."""
        return bool(self.format) and not self.units and not self.damage

    def targets(self) -> dict[str, int]:
        """How many images there are for each target."""
        counts: dict[str, int] = {}
        for unit in self.units:
            for image in unit.images:
                counts[image.target] = counts.get(image.target, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class PlainFacts:
    """A file that was looked at and can hold no device code. `sha256` is hexadecimal, "" if it was not computed."""

    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """Everything that was read of an artifact.

    `paths` are its regular files, `problems` the faults of the container itself.
    """

    kind: str
    name: str
    size: int
    libraries: tuple[LibraryFacts, ...]
    distributions: tuple[Distribution, ...] = ()
    paths: tuple[str, ...] = ()
    sha256: str = ""
    problems: tuple[Finding, ...] = ()
    container: Container | None = None
    """What an image is besides its files; None for anything else."""
