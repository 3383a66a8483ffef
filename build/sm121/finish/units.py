"""What finishing does with each translation unit: decided from what is in the file, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.device.write import FLAG_64_BIT, FLAG_DEBUG, FLAG_LINUX
from sm121.errors import FinishError
from sm121.finish.ptxas import ptxas_options
from sm121.target import LoadsAs, loads_as
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device import Container, DeviceCode, DeviceImage
    from sm121.target import Capability

HOST_FLAGS = FLAG_64_BIT | FLAG_LINUX | FLAG_DEBUG
_PTX_FLAGS = HOST_FLAGS | 0xA000 | 0x300000
"""What an entry of PTX may carry: host and debugging, compression, suffix of the target."""


class Deed(StrEnum):
    """What is done with a translation unit."""

    UNCHANGED = "unchanged"
    """All its images stay."""
    SLIMMED = "slimmed"
    """It has machine code that loads; images that do not load, and PTX, go."""
    COMPILED = "compiled"
    """It had PTX only; now it has machine code."""
    EMPTIED = "emptied"
    """Nothing in it loads, before as after."""


@dataclass(frozen=True, slots=True)
class Source:
    """PTX to be compiled, for which target, with which options of its maker."""

    image: DeviceImage
    arch: ArchSpec
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """One container: what stays in it, what goes, and what is compiled, if anything."""

    container: Container
    deed: Deed
    kept: tuple[DeviceImage, ...]
    dropped: tuple[DeviceImage, ...]
    source: Source | None = None


def plan_units(code: DeviceCode, target: Capability, arch: ArchSpec, *, keep_ptx: bool) -> tuple[Unit, ...]:
    """Decide about every container of a library.

    `arch` is the plain target to compile for, e.g. 12.1; PTX for a family or for one chip that may be compiled for
    `target` keeps its suffix. Raises FinishError with everything that forbids to rewrite the library.
    """
    problems = list(_obstacles(code))
    units = []
    for container in code.containers:
        try:
            units.append(_unit(container, target, arch, keep_ptx=keep_ptx))
        except FinishError as error:
            problems += [f"unit {container.index}: {problem}" for problem in error.problems]
    if problems:
        raise FinishError(problems)
    return tuple(units)


def _obstacles(code: DeviceCode) -> Iterator[str]:
    if code.format != "elf":
        yield f"a shared library, program or object was wanted, found a {code.format}."
    yield from code.damage
    yield from code.notices
    if relocatable := sum(container.section == "__nv_relfatbin" for container in code.containers):
        yield (
            f"{relocatable} units hold relocatable device code (section __nv_relfatbin), which a device link of the "
            "whole library would have to follow."
        )
    for image in code.images:
        if image.kind == "lto":
            yield f"unit {image.container} holds LTO-IR ({image.target}), which needs a device link."


def _unit(container: Container, target: Capability, arch: ArchSpec, *, keep_ptx: bool) -> Unit:
    how = {image: loads_as(image.kind, image.arch, target) for image in container.images}
    loadable = [image for image in container.images if how[image].machine_code]
    jit = [image for image in container.images if how[image] is LoadsAs.JIT]
    kept = tuple(image for image in container.images if image in loadable or (keep_ptx and image in jit))
    dropped = tuple(image for image in container.images if image not in kept)
    if loadable:
        return Unit(container, Deed.SLIMMED if dropped else Deed.UNCHANGED, kept, dropped)
    if jit:
        # The driver takes the highest one too.
        best = max(jit, key=lambda image: (image.arch.number, image.arch.suffix, image.version))
        return Unit(container, Deed.COMPILED, kept, dropped, _source(best, arch))
    if specific := [image for image in container.images if image.kind == "ptx" and image.arch.suffix]:
        names = ", ".join(sorted({image.target for image in specific}))
        raise FinishError(
            f"it holds architecture-specific PTX ({names}), which cannot be compiled for {target}, and nothing else "
            "that loads."
        )
    return Unit(container, Deed.EMPTIED if dropped else Deed.UNCHANGED, (), dropped)


def _source(image: DeviceImage, arch: ArchSpec) -> Source:
    if image.flags & ~_PTX_FLAGS or not image.flags & FLAG_64_BIT or not image.flags & FLAG_LINUX:
        raise FinishError(f"its PTX ({image.target}) has flags that are not understood: {image.flags:#x}.")
    return Source(image, ArchSpec(arch.major, arch.minor, image.arch.suffix), ptxas_options(image.options))
