"""What of the device code serves a compute capability: per unit, per kernel, per family, per library. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.inspector.facts import ABSENT
from sm121.inspector.loading import choose
from sm121.target import LoadsAs, loads_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.inspector.facts import ImageFacts, LibraryFacts, UnitFacts, UnitKernel
    from sm121.inspector.rules import Bodies, Drivers, Policy
    from sm121.target import Capability
    from sm121.values import CudaVersion


class Body(StrEnum):
    """What stands behind a kernel's name."""

    REAL = "real"
    SMALL = "small"
    """Far smaller than for another target, which alone proves nothing."""
    STUB = "stub"
    """Far smaller, and writes nothing: it says at most that it was compiled for the wrong chip."""
    FOREIGN = "foreign"
    """Another chip's main loop: it traps."""


@dataclass(frozen=True, slots=True)
class UnitCoverage:
    """How a unit loads. `target` is that of the image which the driver takes, "" if there is none.

    `refused` are PTX targets that would do, were the driver at hand not too old for them.
    """

    facts: UnitFacts
    loads_as: LoadsAs
    chosen: int | None
    refused: tuple[str, ...] = ()

    @property
    def image(self) -> ImageFacts | None:
        return None if self.chosen is None else self.facts.images[self.chosen]

    @property
    def target(self) -> str:
        return self.image.target if self.image else ""

    @property
    def empty(self) -> bool:
        """The image that would be taken holds no kernel; true of what nvlink adds to a library."""
        return self.image is not None and self.image.kernels == 0

    @property
    def link_stub(self) -> bool:
        """Nothing but nvlink's own images without kernels."""
        images = self.facts.images
        return bool(images) and all(
            image.kernels == 0 and image.toolkit is not None and image.toolkit.tool == "nvlink"
            for image in images
        )


@dataclass(frozen=True, slots=True)
class KernelCoverage:
    """A kernel of a library, with the best that any unit offers. `size` is its machine code in bytes, or 0."""

    name: str
    library: str
    family: str
    loads_as: LoadsAs
    body: Body
    size: int
    registers: int | None = None
    fp4: int | None = None
    fp8: int | None = None
    traps: int | None = None

    @property
    def serves(self) -> bool:
        """It can be launched and does its work."""
        return self.loads_as is not LoadsAs.NO and self.body in {Body.REAL, Body.SMALL}

    @property
    def state(self) -> str:
        """One of `STATES`; a small body counts as what it loads as."""
        return self.body.value if self.body in {Body.STUB, Body.FOREIGN} else self.loads_as.value


STATES = (
    *(str(how) for how in LoadsAs if how is not LoadsAs.NO),
    Body.FOREIGN.value,
    Body.STUB.value,
    LoadsAs.NO.value,
)
"""The states of a kernel, best first."""


@dataclass(frozen=True, slots=True)
class LibraryCoverage:
    """A library with its verdicts."""

    facts: LibraryFacts
    units: tuple[UnitCoverage, ...]
    kernels: tuple[KernelCoverage, ...]

    @property
    def counted(self) -> tuple[UnitCoverage, ...]:
        """The units that count: those that hold kernels, as far as one knows."""
        return tuple(unit for unit in self.units if not unit.link_stub)

    @property
    def loads_as(self) -> LoadsAs:
        """The best of its units whose image holds kernels."""
        return min(
            (unit.loads_as for unit in self.counted if not unit.empty),
            key=lambda how: how.rank,
            default=LoadsAs.NO,
        )

    @property
    def loading(self) -> Counter[LoadsAs]:
        """How many units load how."""
        return Counter(unit.loads_as for unit in self.counted)

    @property
    def states(self) -> Counter[str]:
        """How many kernels are in which state."""
        return Counter(kernel.state for kernel in self.kernels)

    @property
    def jit(self) -> tuple[ImageFacts, ...]:
        """The PTX images that the driver has to compile."""
        return tuple(unit.image for unit in self.units if unit.loads_as is LoadsAs.JIT and unit.image)


@dataclass(frozen=True, slots=True)
class FamilyCoverage:
    """A family over all libraries: number and machine code bytes of its kernels per state."""

    name: str
    kernels: Mapping[str, int]
    bytes: Mapping[str, int]
    libraries: tuple[str, ...]

    @property
    def machine(self) -> int:
        """Kernels that run without the driver's compiler."""
        return sum(count for state, count in self.kernels.items() if state in _MACHINE)

    @property
    def serving(self) -> int:
        """Kernels that run, be it after the driver compiled them."""
        return self.machine + self.kernels.get(LoadsAs.JIT, 0)


_MACHINE = frozenset(str(how) for how in LoadsAs if how.machine_code)


def cover(
    library: LibraryFacts, policy: Policy, capability: Capability, driver: CudaVersion | None = None
) -> LibraryCoverage:
    """Judge one library's units and kernels; `driver` is the CUDA version of the driver, None if unknown."""
    units = tuple(_unit(unit, policy.drivers, capability, driver) for unit in library.units)
    fixed, prefix = policy.families.of_library(library.path), policy.families.prefix(library.path)
    best: dict[str, tuple[UnitKernel, LoadsAs, Body, int]] = {}
    for unit in units:
        for kernel in unit.facts.kernels:
            found = kernel, *_kernel(kernel, unit, policy.bodies, capability)
            if kernel.name not in best or _order(found) < _order(best[kernel.name]):
                best[kernel.name] = found
    return LibraryCoverage(
        library, units,
        tuple(
            KernelCoverage(
                name, library.path, fixed or prefix + policy.families.of_name(name), loads, body, size,
                kernel.registers, kernel.fp4, kernel.fp8, kernel.traps,
            )
            for name, (kernel, loads, body, size) in sorted(best.items())
        ),
    )  # fmt: skip


def families(libraries: Iterable[LibraryCoverage]) -> tuple[FamilyCoverage, ...]:
    """The families of all libraries, by name."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    where: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        for kernel in library.kernels:
            family, state = kernel.family, kernel.state
            counts[family][state] += 1
            sizes[family][state] += kernel.size
            where[family].add(library.facts.path)
    return tuple(
        FamilyCoverage(name, dict(counts[name]), dict(sizes[name]), tuple(sorted(where[name])))
        for name in sorted(counts)
    )


def too_new(image: ImageFacts, drivers: Drivers, driver: CudaVersion | None) -> bool:
    """Whether `driver` is known and too old for this PTX."""
    needs = drivers.needs(image.isa) if image.kind == "ptx" else None
    return driver is not None and needs is not None and driver.release < needs


def _unit(unit: UnitFacts, drivers: Drivers, capability: Capability, driver: CudaVersion | None) -> UnitCoverage:
    images = unit.images
    chosen = choose(images, capability, lambda index: too_new(images[index], drivers, driver))
    loads = LoadsAs.NO if chosen is None else loads_as(images[chosen].kind, images[chosen].arch, capability)
    refused = tuple(image.target for image in images if too_new(image, drivers, driver)) if chosen is None else ()
    return UnitCoverage(unit, loads, chosen, refused)


def _kernel(
    kernel: UnitKernel, unit: UnitCoverage, bodies: Bodies, capability: Capability
) -> tuple[LoadsAs, Body, int]:
    image = unit.image
    if unit.chosen is None or image is None or kernel.sizes[unit.chosen] == ABSENT:
        return LoadsAs.NO, Body.REAL, 0
    size = kernel.sizes[unit.chosen]
    if image.kind == "cubin" and bodies.small(size, max(kernel.sizes)):
        body = Body.STUB if kernel.inert else Body.SMALL
    elif image.kind == "cubin" and bodies.foreign_to(kernel.name, capability.major):
        body = Body.FOREIGN
    else:
        body = Body.REAL
    return unit.loads_as, body, size


def _order(found: tuple[UnitKernel, LoadsAs, Body, int]) -> tuple[int, int]:
    _, loads, body, _ = found
    state = body.value if body in {Body.STUB, Body.FOREIGN} else loads.value
    return STATES.index(state), loads.rank
